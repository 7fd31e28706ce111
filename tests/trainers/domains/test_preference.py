"""Preference training: delta and loss parts against plain loops, ranks, resume, the cached
reference, verdicts."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rl_core.errors import RecipeError
from rl_core.trainers.domains.preference import PreferenceTrainer
from schemas.recipe import Recipe
from tests.rollout.named_rows import assert_named

NUM_PAIRS = 12
MPO = {"name": "mpo", "beta": 0.5, "reward_decay": 0.9}


def item(index: int, chosen: str = "", rejected: str = "") -> dict[str, Any]:
    return {
        "uid": f"pair-{index}",
        "prompt": [{"role": "user", "content": f"say {index * 7}"}],
        "chosen": chosen or f"yes {index}",
        "rejected": rejected or "no" * (1 + index % 3),
        "env_extras": {"data_source": "test", "images": []},
    }


ITEMS = [item(index) for index in range(NUM_PAIRS)]
HELD_OUT = [item(index) for index in range(100, 105)]


def recipe_of(model_dir: Path, **changes: Any) -> Recipe:
    values = {
        "name": "pairs",
        "domain": "preference",
        "model": {"path": str(model_dir)},
        "fsdp": {"param_dtype": "float32"},
        "optimizer": {"learning_rate": 3e-3, "eps": 1e-4},
        "data": {"train": ["unused"], "eval": ["unused"]},
        "algorithm": MPO,
        "preference": {"max_length": 64},
        "training": {"num_iterations": 1, "steps_per_iteration": 4, "prompts_per_step": 4},
        "placement": {"threads_per_device": 1, "micro_batch_size": 4},
    }
    for key, value in changes.items():
        values[key] = (
            {**values[key], **value}
            if key in ("placement", "preference", "training", "data")
            else value
        )
    return Recipe.model_validate(values)


@dataclass
class Outcome:
    """What some steps gave."""

    weights: dict[str, Tensor]
    metrics: list[dict[str, float]]
    scores: dict[str, list[float]]
    delta: float


def run(recipe: Recipe, steps: int = 2, items: list[dict[str, Any]] = ITEMS) -> Outcome:
    with running(recipe, items) as trainer:
        metrics = []
        for _ in range(steps):
            found, rollout = trainer.step()
            assert_named(rollout)
            metrics.append(found)
        played = trainer.evaluate(HELD_OUT, 1)
        scores = {
            name: played.tensor(name).tolist() for name in ("rewards", *trainer.held_out_scores)
        }
        learner = trainer.tracks["pairs"].learner
        return Outcome(
            learner.backend.full_state()[0],
            metrics,
            scores,
            learner.algorithm.state_dict()["delta"],
        )


class running:
    """A built trainer that ends with the block."""

    def __init__(self, recipe: Recipe, items: list[dict[str, Any]] = ITEMS) -> None:
        self.trainer = PreferenceTrainer(recipe, recipe.model.path, items)

    def __enter__(self) -> PreferenceTrainer:
        try:
            self.trainer.build()
            self.trainer.prepare(HELD_OUT)
        except BaseException:
            self.trainer.close()
            raise
        return self.trainer

    def __exit__(self, *_: object) -> None:
        self.trainer.close()


def plain_steps(model_dir: Path, batches: list[list[dict[str, Any]]]) -> Iterator[dict[str, float]]:
    """MPO in loops over single pairs, on a transformers model, without any of the project's
    maths."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(model_dir)
    policy, reference = (
        AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32) for _ in range(2)
    )
    optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-3, eps=1e-4, weight_decay=0.0)

    def log_prob(model: Any, pair: dict[str, Any], side: str) -> tuple[Tensor, int]:
        prompt = tokenizer.apply_chat_template(
            pair["prompt"], add_generation_prompt=True, return_dict=False
        )
        answer = [*tokenizer.encode(pair[side], add_special_tokens=False), tokenizer.eos_token_id]
        logits = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        return logits.log_softmax(-1)[range(len(answer)), answer].sum(), len(answer)

    delta = 0.0
    for batch in batches:
        parts = {"preference_loss": 0.0, "quality_loss": 0.0, "generation_loss": 0.0}
        loss, rewards = torch.zeros(()), []
        for pair in batch:
            (chosen, length), (rejected, _) = (
                log_prob(policy, pair, side) for side in ("chosen", "rejected")
            )
            with torch.no_grad():
                ref_chosen, ref_rejected = (
                    log_prob(reference, pair, side)[0] for side in ("chosen", "rejected")
                )
            better, worse = 0.5 * (chosen - ref_chosen), 0.5 * (rejected - ref_rejected)
            terms = {
                "preference_loss": 0.8 * -torch.log(torch.sigmoid(better - worse)),
                "quality_loss": 0.2
                * -(
                    torch.log(torch.sigmoid(better - delta))
                    + torch.log(torch.sigmoid(delta - worse))
                ),
                "generation_loss": -chosen / length,
            }
            for name, term in terms.items():
                parts[name] += float(term.detach()) / len(batch)
                loss = loss + term / len(batch)
            rewards += [float(better.detach()), float(worse.detach())]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        mean = sum(rewards) / len(rewards)
        delta = 0.9 * delta + 0.1 * mean
        yield {**parts, "loss": float(loss.detach()), "implicit_reward": mean, "delta": delta}


@pytest.mark.usefixtures("ray_cluster")
def test_loss_parts_and_delta_follow_plain_loops_over_three_steps_and_two_ranks(
    tiny_model_dir: Path,
) -> None:
    recipe = recipe_of(tiny_model_dir, placement={"num_devices": 2})
    batches: list[list[dict[str, Any]]] = []
    with running(recipe) as trainer:
        drawn = trainer.source.next_batch
        trainer.source.next_batch = lambda: batches.append(drawn()) or batches[-1]  # pyright: ignore[reportAttributeAccessIssue]
        metrics = [trainer.step()[0] for _ in range(3)]
    assert len({pair["uid"] for batch in batches for pair in batch}) == NUM_PAIRS
    for found, expected in zip(metrics, plain_steps(tiny_model_dir, batches), strict=True):
        assert {name: found[name] for name in expected} == pytest.approx(expected, abs=2e-5)
    assert metrics[0]["delta"] == 0.0 and abs(metrics[2]["delta"]) > 1e-4, "nothing moved"


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_two_ranks_one_rank_and_any_micro_batches_learn_the_same(tiny_model_dir: Path) -> None:
    one = run(recipe_of(tiny_model_dir))
    for placement in (
        {"num_devices": 2, "micro_batch_size": 2},
        {"max_tokens_per_micro_batch": 90},
    ):
        other = run(recipe_of(tiny_model_dir, placement=placement))
        for name, weight in one.weights.items():
            torch.testing.assert_close(weight, other.weights[name], atol=2e-5, rtol=0)
        assert other.delta == pytest.approx(one.delta, abs=1e-6)
        assert other.scores["reward_margin"] == pytest.approx(one.scores["reward_margin"], abs=1e-4)
        for mine, theirs in zip(one.metrics, other.metrics, strict=True):
            for name in (
                "loss",
                "grad_norm",
                "reward_margin",
                "reward_accuracy",
                "implicit_reward",
            ):
                assert mine[name] == pytest.approx(theirs[name], abs=1e-4), name


@pytest.mark.usefixtures("ray_cluster")
def test_a_resumed_run_is_bit_identical_delta_included(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    recipe = recipe_of(tiny_model_dir, lora={"rank": 4, "alpha": 8})
    with running(recipe) as trainer:
        for _ in range(2):
            trainer.step()
        trainer.save(str(tmp_path / "checkpoint"))
        state = json.loads(json.dumps(trainer.state_dict()))
        straight = [trainer.step()[0] for _ in range(2)]
        expected = trainer.backends()["policy"].full_state()[0]
    assert state["algorithms"]["pairs"]["delta"] != 0.0
    with running(recipe) as trainer:
        trainer.load(str(tmp_path / "checkpoint"))
        trainer.load_state_dict(state)
        resumed = [trainer.step()[0] for _ in range(2)]
        found = trainer.backends()["policy"].full_state()[0]
    for one, two in zip(straight, resumed, strict=True):
        assert (one["loss"], one["delta"]) == (two["loss"], two["delta"])
    assert all(torch.equal(expected[name], found[name]) for name in expected)


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize(
    "lora",
    [pytest.param(None, marks=pytest.mark.long, id="whole"), {"rank": 4, "alpha": 8}],
    ids=[None, "adapters"],
)
def test_a_reference_from_the_cache_teaches_what_a_forward_pass_teaches(
    tiny_model_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lora: dict[str, int] | None,
) -> None:
    monkeypatch.setenv("RL_TRAIN_HOME", str(tmp_path))
    forward = run(recipe_of(tiny_model_dir, lora=lora))
    cached = recipe_of(tiny_model_dir, lora=lora, preference={"reference": "precomputed"})
    first = run(cached)
    folders = sorted(tmp_path.glob("cache/reference-*/.ready"))
    written = [folder.stat().st_mtime_ns for folder in folders]
    again = run(cached)
    assert len(folders) == 2, "one for what is trained on, one for what is held out"
    assert [folder.stat().st_mtime_ns for folder in folders] == written, "computed once"
    for other in (first, again):
        assert all(
            torch.allclose(forward.weights[n], other.weights[n], atol=1e-6) for n in forward.weights
        )
        assert other.scores["reward_margin"] == pytest.approx(
            forward.scores["reward_margin"], abs=1e-5
        )


@pytest.mark.usefixtures("ray_cluster")
def test_overlong_and_equal_pairs_are_counted_and_teach_nothing(tiny_model_dir: Path) -> None:
    think = {"think": "strip", "max_length": 64}
    good = ITEMS[:2]
    # Four pairs a step: two that teach, one that is too long, one whose answers differ in their
    # reasoning alone.
    idle = [item(90, chosen="long " * 30), item(91, "<think>a</think>same", "<think>b</think>same")]
    mixed = run(recipe_of(tiny_model_dir, preference=think), 1, [*good, *idle])
    alone = run(
        recipe_of(tiny_model_dir, preference=think, training={"prompts_per_step": 2}), 1, good
    )
    assert (mixed.metrics[0]["overlong_pairs"], mixed.metrics[0]["equal_pairs"]) == (1.0, 1.0)
    assert mixed.metrics[0]["loss"] == pytest.approx(alone.metrics[0]["loss"], abs=1e-6)
    for name, weight in alone.weights.items():
        torch.testing.assert_close(weight, mixed.weights[name], atol=1e-6, rtol=0)
    nothing = run(
        recipe_of(tiny_model_dir, preference=think, training={"prompts_per_step": 2}), 1, idle
    )
    assert (nothing.metrics[0]["skipped_steps"], nothing.delta) == (1.0, 0.0)


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize(
    "name",
    [
        "dpo",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("ipo", "simpo", "orpo", "kto")),
    ],
)
def test_the_siblings_of_mpo_learn_to_tell_the_answers_apart(
    tiny_model_dir: Path, name: str
) -> None:
    with running(recipe_of(tiny_model_dir, algorithm={"name": name})) as trainer:
        before = trainer.evaluate(ITEMS, 1).tensor("log_prob_margin").mean()
        for _ in range(4):
            trainer.step()
        played = trainer.evaluate(ITEMS, 1)
        assert played.tensor("log_prob_margin").mean() > before + 0.01
        with_reference = name in ("dpo", "ipo", "kto")
        assert (
            trainer.held_out_scores
            == ("log_prob_margin", "reward_margin", "reward_accuracy")[: 3 if with_reference else 1]
        )
        if with_reference:
            assert float(played.tensor("reward_margin").mean()) > 0


@pytest.mark.usefixtures("ray_cluster")
def test_before_training_no_margin_tells_anything(tiny_model_dir: Path) -> None:
    outcome = run(recipe_of(tiny_model_dir), steps=0)
    assert outcome.scores["reward_margin"] == [0.0] * len(HELD_OUT)
    assert outcome.scores["reward_accuracy"] == [0.5] * len(HELD_OUT)
    told = [float(margin > 0) for margin in outcome.scores["log_prob_margin"]]
    assert outcome.scores["rewards"] == told and all(
        map(math.isfinite, outcome.scores["log_prob_margin"])
    )


@pytest.mark.usefixtures("ray_cluster")
def test_an_algorithm_that_wants_rollouts_is_refused_by_name(tiny_model_dir: Path) -> None:
    with (
        pytest.raises(RecipeError, match="Grpo does not learn from pairs; use mpo, dpo"),
        running(recipe_of(tiny_model_dir, algorithm={"name": "grpo"})),
    ):
        pass
