"""Supervised fine-tuning: the loss of plain transformers, micro-batches and ranks, resume, noise,
held-out measures and played rows."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rl_core.trainers.domains.sft import SftTrainer
from schemas.recipe import Recipe
from tests.rollout.named_rows import assert_named

NUM_ROWS = 8


def said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def item(index: int, answer: str = "", **named: str) -> dict[str, Any]:
    """A row; every third has two turns of the assistant, and two ask the same."""
    completion = [said("assistant", answer or f"yes {index}" * (1 + index % 3))]
    if index % 3 == 2:
        completion = [*completion, said("user", "and?"), said("assistant", f"no {index}")]
    return {
        "uid": f"row-{index}",
        "prompt": [said("user", f"say {index // 2}")],
        "env_extras": {
            "completion": completion,
            "reward_spec": {"ground_truth": completion[-1]["content"]},
        },
        **named,
    }


ITEMS = [item(index) for index in range(NUM_ROWS)]


def recipe_of(model_dir: Path, **changes: Any) -> Recipe:
    values: dict[str, Any] = {
        "name": "answers",
        "domain": "sft",
        "model": {"path": str(model_dir)},
        "fsdp": {"param_dtype": "float32"},
        "optimizer": {"learning_rate": 3e-3, "eps": 1e-4},
        "data": {"train": ["unused"], "eval": ["unused"]},
        "algorithm": {"name": "sft"},
        "sft": {"max_length": 96},
        "training": {"num_iterations": 1, "steps_per_iteration": 4, "prompts_per_step": 4},
        "placement": {"threads_per_device": 1, "micro_batch_size": 4},
    }
    for key, value in changes.items():
        is_block = isinstance(value, dict) and key in values
        values[key] = {**values[key], **value} if is_block else value
    return Recipe.model_validate(values)


class running:
    """A built trainer that ends with the block."""

    def __init__(self, recipe: Recipe, items: list[dict[str, Any]] | None = None) -> None:
        self.trainer = SftTrainer(recipe, recipe.model.path, items or ITEMS)

    def __enter__(self) -> SftTrainer:
        try:
            self.trainer.build()
        except BaseException:
            self.trainer.close()
            raise
        return self.trainer

    def __exit__(self, *_: object) -> None:
        self.trainer.close()


def run(recipe: Recipe, steps: int = 2) -> tuple[dict[str, Tensor], list[dict[str, float]]]:
    with running(recipe) as trainer:
        metrics = []
        for _ in range(steps):
            found, rollout = trainer.step()
            assert_named(rollout)
            metrics.append(found)
        return trainer.tracks["answers"].learner.backend.full_state()[0], metrics


def plain_steps(model_dir: Path, batches: list[list[dict[str, Any]]]) -> list[float]:
    """The loss of transformers' own `labels=` over each batch, one row at a time."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(model_dir)
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, eps=1e-4, weight_decay=0.0)
    losses = []
    for batch in batches:
        encoded = [labelled(tokenizer, row) for row in batch]
        num_taught = sum(int((labels != -100).sum()) for _, labels in encoded)
        total = torch.zeros(())
        for ids, labels in encoded:
            own = int((labels != -100).sum())
            total = total + model(ids, labels=labels).loss * own / num_taught
        total.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(total.detach()))
    return losses


def labelled(tokenizer: Any, row: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """A row's tokens, and its labels: the assistant's words and the mark that ends its turn."""
    ids: list[int] = []
    labels: list[int] = []
    for message in [*row["prompt"], *row["env_extras"]["completion"]]:
        head = tokenizer.encode(f"<|im_start|>{message['role']}\n", add_special_tokens=False)
        text = tokenizer.encode(f"{message['content']}<|im_end|>", add_special_tokens=False)
        rest = tokenizer.encode("\n", add_special_tokens=False)
        taught = text if message["role"] == "assistant" else [-100] * len(text)
        ids += [*head, *text, *rest]
        labels += [*([-100] * len(head)), *taught, *([-100] * len(rest))]
    return torch.tensor([ids]), torch.tensor([labels])


@pytest.mark.usefixtures("ray_cluster")
def test_the_loss_is_that_of_plain_transformers_on_the_assistants_turns(
    tiny_model_dir: Path,
) -> None:
    batches: list[list[dict[str, Any]]] = []
    with running(recipe_of(tiny_model_dir, placement={"num_devices": 2})) as trainer:
        drawn = trainer.source.next_batch
        trainer.source.next_batch = lambda: batches.append(drawn()) or batches[-1]  # pyright: ignore[reportAttributeAccessIssue]
        metrics = [trainer.step()[0] for _ in range(2)]
    expected = plain_steps(tiny_model_dir, batches)
    assert [one["loss"] for one in metrics] == pytest.approx(expected, abs=1e-5)
    assert [one["nll"] for one in metrics] == pytest.approx(expected, abs=1e-5)


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize(
    "alpha", [pytest.param(0.0, marks=pytest.mark.long), 5.0], ids=["plain", "neftune"]
)
def test_packing_sharing_and_micro_batches_learn_the_same(
    tiny_model_dir: Path, alpha: float
) -> None:
    sft = {"neftune_alpha": alpha}
    weights, metrics = run(recipe_of(tiny_model_dir, sft=sft, placement={"share_prompts": False}))
    for placement in ({"micro_batch_size": 1}, {"max_tokens_per_micro_batch": 120}):
        others, found = run(recipe_of(tiny_model_dir, sft=sft, placement=placement))
        assert [one["loss"] for one in found] == pytest.approx(
            [one["loss"] for one in metrics], abs=1e-5
        )
        for name, weight in weights.items():
            torch.testing.assert_close(weight, others[name], atol=2e-5, rtol=0)


@pytest.mark.usefixtures("ray_cluster")
def test_a_resumed_run_with_noise_is_bit_identical(tiny_model_dir: Path, tmp_path: Path) -> None:
    recipe = recipe_of(tiny_model_dir, lora={"rank": 4, "alpha": 8}, sft={"neftune_alpha": 5.0})
    with running(recipe) as trainer:
        quiet = trainer.step()[0]["loss"]
        trainer.save(str(tmp_path / "checkpoint"))
        state = json.loads(json.dumps(trainer.state_dict()))
        straight = trainer.step()[0]
        expected = trainer.backends()["policy"].full_state()[0]
    with running(recipe) as trainer:
        trainer.load(str(tmp_path / "checkpoint"))
        trainer.load_state_dict(state)
        resumed = trainer.step()[0]
        found = trainer.backends()["policy"].full_state()[0]
    assert straight["loss"] == resumed["loss"] != quiet
    assert all(torch.equal(expected[name], found[name]) for name in expected)


@pytest.mark.usefixtures("ray_cluster")
def test_held_out_rows_are_measured_and_those_with_an_environment_played(
    tiny_model_dir: Path,
) -> None:
    rows = [item(0), item(1, env_class="exact_match"), item(2)]
    with running(recipe_of(tiny_model_dir)) as trainer:
        before = trainer.evaluate(rows, 4)
        for _ in range(4):
            trainer.step()
        after = trainer.evaluate(rows, 4)
    assert trainer.held_out_scores == ("log_prob", "token_accuracy")
    assert float(after.tensor("log_prob").mean()) > float(before.tensor("log_prob").mean())
    assert set(after.tensor("rewards").tolist()) <= {0.0, 1.0}
    assert all(map(math.isfinite, after.tensor("token_accuracy").tolist()))
    answers = after.non_tensor_batch["env_answer"].tolist()
    assert [answer is None for answer in answers] == [True, False, True]
    assert len(after.non_tensor_batch["response"][1]) <= 4, "played, not measured"


@pytest.mark.usefixtures("ray_cluster")
def test_a_row_that_is_too_long_is_counted_and_teaches_nothing(tiny_model_dir: Path) -> None:
    rows = [item(0), item(1), item(3), item(4, answer="long " * 30)]
    with running(recipe_of(tiny_model_dir), rows) as trainer:
        found = trainer.step()[0]
    alone = recipe_of(tiny_model_dir, training={"prompts_per_step": 3})
    with running(alone, rows[:3]) as trainer:
        expected = trainer.step()[0]
    assert found["overlong_rows"] == 1.0
    assert found["loss"] == pytest.approx(expected["loss"], abs=1e-6)


@pytest.mark.usefixtures("ray_cluster")
def test_pictures_are_seen_while_answers_are_learnt(tiny_vlm_dir: Path, tmp_path: Path) -> None:
    from PIL import Image

    path = tmp_path / "red.png"
    Image.new("RGB", (32, 32), "red").save(path)
    seen, unseen = item(0, "red"), item(0, "red")
    seen["env_extras"]["images"] = [str(path)]
    recipe = recipe_of(tiny_vlm_dir, training={"prompts_per_step": 1}, sft={"max_length": 512})
    losses = []
    for row in (seen, unseen):
        with running(recipe, [row]) as trainer:
            losses.append([trainer.step()[0]["loss"] for _ in range(3)])
    assert losses[0][0] != losses[1][0]
    assert losses[0][2] < losses[0][0]
