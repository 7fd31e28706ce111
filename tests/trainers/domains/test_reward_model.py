"""Training of a reward model: steps against plain torch, its exported folder against transformers'
own forward, resume, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rl_core.builtin.data.courteous_replies import courteous_replies
from rl_core.errors import RecipeError
from rl_core.runs.recipes import parse_recipe
from rl_core.trainers.domains.reward_model import RewardModelTrainer
from schemas.recipe import Recipe

CENTER = 0.01


def item(index: int, **more: Any) -> dict[str, Any]:
    turns = [{"role": "user", "content": f"say {index * 7}"}]
    if index % 3 == 0:
        turns += [{"role": "assistant", "content": "what?"}, {"role": "user", "content": "now"}]
    return {
        "uid": f"pair-{index}",
        "prompt": turns,
        "chosen": f"yes {index}",
        "rejected": "no" * (1 + index % 3),
        "env_extras": {"data_source": "test", "images": []},
    } | more


ITEMS = [item(index, margin=0.25 * (index % 2)) for index in range(12)]
HELD_OUT = [item(index) for index in range(100, 105)]


def recipe_of(model_dir: Path, **changes: Any) -> Recipe:
    values = {
        "name": "scores",
        "domain": "reward_model",
        "model": {"path": str(model_dir)},
        "fsdp": {"param_dtype": "float32"},
        "optimizer": {"learning_rate": 3e-3, "eps": 1e-4},
        "data": {"train": ["unused"], "eval": ["unused"]},
        "algorithm": {"name": "bradley_terry", "center_coefficient": CENTER},
        "preference": {"max_length": 64},
        "training": {"num_iterations": 1, "steps_per_iteration": 4, "prompts_per_step": 4},
        "placement": {"threads_per_device": 1, "micro_batch_size": 4},
    }
    return Recipe.model_validate(values | changes)


class running:
    """A built trainer that ends with the block."""

    def __init__(
        self,
        recipe: Recipe,
        source: Path | None = None,
        items: list[dict[str, Any]] = ITEMS,
    ) -> None:
        self.trainer = RewardModelTrainer(recipe, str(source or recipe.model.path), items)

    def __enter__(self) -> RewardModelTrainer:
        try:
            self.trainer.build()
        except BaseException:
            self.trainer.close()
            raise
        return self.trainer

    def __exit__(self, *_: object) -> None:
        self.trainer.close()


def weights(trainer: RewardModelTrainer) -> dict[str, Tensor]:
    backend: Any = trainer.tracks["pairs"].learner.backend
    return backend.full_state()[0]


def plain_score(model: Any, tokenizer: Any, one: dict[str, Any], side: str) -> Tensor:
    """The score of a conversation by transformers alone: template, tokenizer, classifier."""
    turns = [*one["prompt"], {"role": "assistant", "content": one[side]}]
    text = tokenizer.apply_chat_template(turns, tokenize=False)
    ids = tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"]
    return model(input_ids=ids).logits[0, 0]


def plain_lead(model: Any, tokenizer: Any, one: dict[str, Any]) -> tuple[Tensor, Tensor]:
    return tuple(plain_score(model, tokenizer, one, side) for side in ("chosen", "rejected"))  # type: ignore[return-value]


@pytest.mark.usefixtures("ray_cluster")
def test_steps_are_those_of_plain_torch_on_the_exported_folder(
    tiny_model_dir: Path, tmp_path: Path
):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    with running(recipe_of(tiny_model_dir)) as trainer:
        trainer.export(str(tmp_path / "before"))
        drawn, batches = trainer.source.next_batch, []
        trainer.source.next_batch = lambda: batches.append(drawn()) or batches[-1]  # pyright: ignore[reportAttributeAccessIssue]
        found = [trainer.step()[0] for _ in range(3)]
        played = trainer.evaluate(HELD_OUT, 1)
        margins = played.tensor("score_margin").tolist()
        trainer.export(str(tmp_path / "after"))

    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "before")
    model = AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "before", dtype=torch.float32
    )
    assert model.config.num_labels == 1
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, eps=1e-4, weight_decay=0.0)
    for batch, metrics in zip(batches, found, strict=True):
        losses = []
        for one in batch:
            chosen, rejected = plain_lead(model, tokenizer, one)
            lead = chosen - rejected - one.get("margin", 0.0)
            losses.append(-lead.sigmoid().log() + CENTER * (chosen + rejected) ** 2)
        loss = torch.stack(losses).mean()
        assert metrics["loss"] == pytest.approx(float(loss.detach()), abs=1e-5)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    after = AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "after", dtype=torch.float32
    )
    for one, margin in zip(HELD_OUT, margins, strict=True):
        with torch.no_grad():
            chosen, rejected = plain_lead(after, tokenizer, one)
            assert float(chosen - rejected) == pytest.approx(margin, abs=1e-4)
            chosen, rejected = plain_lead(model, tokenizer, one)
            assert float(chosen - rejected) == pytest.approx(margin, abs=2e-3)


@pytest.mark.usefixtures("ray_cluster")
def test_a_resumed_run_is_bit_identical_and_its_folder_goes_on(
    tiny_model_dir: Path, tmp_path: Path
):
    adapted = recipe_of(tiny_model_dir, lora={"rank": 4, "alpha": 8, "dropout": 0.0})
    with running(adapted) as trainer:
        for _ in range(2):
            trainer.step()
        trainer.save(str(tmp_path / "half"))
        state = trainer.state_dict()
        for _ in range(2):
            trainer.step()
        whole = weights(trainer)
        wanted = trainer.evaluate(HELD_OUT, 1)
        trainer.export(str(tmp_path / "model"))
        margins = wanted.tensor("score_margin")
    with running(adapted) as trainer:
        trainer.load(str(tmp_path / "half"))
        trainer.load_state_dict(state)
        for _ in range(2):
            trainer.step()
        again = weights(trainer)
    assert whole.keys() == again.keys()
    assert any("lm_head" in name for name in whole), "the head is trained beside the adapters"
    assert all(torch.equal(value, again[name]) for name, value in whole.items())
    with running(adapted, tmp_path / "model") as trainer:
        found = trainer.evaluate(HELD_OUT, 1).tensor("score_margin")
    assert torch.allclose(found, margins, atol=1e-4)


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_it_tells_held_out_pairs_apart_that_their_lengths_do_not(tiny_model_dir: Path):
    items = [
        item(
            number,
            prompt=[{"role": "user", "content": row["question"]}],
            chosen=row["chosen"],
            rejected=row["rejected"],
        )
        for number, row in enumerate(courteous_replies(600, seed=1))
    ]
    recipe = recipe_of(
        tiny_model_dir,
        optimizer={"learning_rate": 4e-3},
        preference={"max_length": 512},
        training={"num_iterations": 1, "steps_per_iteration": 60, "prompts_per_step": 12},
        placement={"threads_per_device": 1, "micro_batch_size": 24},
    )
    with running(recipe, items=items[:480]) as trainer:
        before = trainer.evaluate(items[480:], 1).tensor("rewards").mean()
        for _ in range(60):
            trainer.step()
        after = trainer.evaluate(items[480:], 1)
    by_length = float(after.tensor("longer_chosen").mean())
    assert float(before) < 0.6 and max(by_length, 1 - by_length) <= 0.6
    assert float(after.tensor("rewards").mean()) >= 0.8


def test_what_does_not_train_scores_is_refused(tiny_model_dir: Path):
    values = recipe_of(tiny_model_dir).model_dump(mode="json")
    refused: list[tuple[dict[str, object], str]] = [
        ({"algorithm": {"name": "dpo"}}, "does not train scores"),
        ({"lora": {"export": "adapter"}}, "registered whole"),
        ({"preference": {"reference": "precomputed"}}, "compared with no reference"),
        ({"domain": "text"}, "set domain: reward_model"),
    ]
    for change, words in refused:
        with pytest.raises(RecipeError, match=words):
            parse_recipe(values | change)
