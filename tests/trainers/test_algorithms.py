"""Every preset for tokens trains through the text trainer, which gives each what it asks for."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_core.algorithms import algorithms
from rl_core.algorithms.policy_gradient import PolicyGradient
from rl_core.algorithms.requirements.trainers import check_serves_tokens
from rl_core.distributed import Block, DevicePool, Remote, placement, refs
from rl_core.distributed.blocks import _open_block
from rl_core.envs import BaseTextEnv, BaseTextEnvStepOutput
from rl_core.errors import RecipeError
from rl_core.trainers.advantages import add_advantages
from rl_core.trainers.domains.text import TOKENS, TRACK, TextTrainer, wire_replies
from rl_core.trainers.length_penalty import GREEDY
from rl_core.trainers.track import prompt_batch
from rl_core.trainers.wiring import side_by_side
from schemas.recipe import Recipe
from tests.distributed.components import count_fetches

NUM_STEPS, NUM_PROMPTS, NUM_SIBLINGS = 2, 4, 4

BLOCKS: dict[str, dict[str, Any]] = {
    # A random model writes until it is cut off, and then nothing would be left to train on.
    "dapo": {"name": "dapo", "overlong": {"filter": False}},
    "kl_in_reward_adaptive": {
        "name": "grpo",
        "kl": {
            "coef": 0.1,
            "kind": "k1",
            "place": "reward",
            "adaptive": {"target": 1e-6, "horizon": 20},
        },
    },
    "kl_adaptive": {
        "name": "grpo",
        "kl": {"coef": 0.1, "adaptive": {"target": 10.0, "horizon": 20}},
    },
    "corrected": {"name": "grpo", "correction": {"mode": "mask", "lower": 0.5, "upper": 5.0}},
    "pass_at_k": {"name": "grpo", "advantage": {"name": "pass_at_k", "k": 2, "pass_mark": 0.5}},
    "optimal_token_baseline": {"name": "grpo", "advantage": {"name": "optimal_token_baseline"}},
    "overlong": {"name": "grpo", "overlong": {"buffer": 4, "penalty": 0.5}},
    # Whatever is written earns nothing like 1 here.
    "rejection_sampling": {"name": "rejection_sampling", "advantage": {"keep": 2}},
}
LOGGED = {
    "kl_in_reward_adaptive": {"kl_reward", "kl_coef", "kl_ref"},
    "kl_adaptive": {"kl_ref", "kl_coef"},
    "corrected": {"correction_weight", "correction_dropped"},
    "overlong": {"overlong_penalty_mean"},
    "ppo": {"critic/value_loss", "critic/grad_norm", "critic/lr", "critic/value_mean"},
    "dapo": {"dynamic/extra_rollouts", "dynamic/flat_groups"},
    "remax": {"greedy_reward_mean"},
}


class LettersEnv(BaseTextEnv):
    """Pays for the share of lower-case letters; where the row says so, the same whatever is
    said."""

    def __init__(
        self, env_config: dict[str, Any] | None = None, extras: dict[str, Any] | None = None
    ) -> None:
        super().__init__()
        self.flat = (extras or {})["extra_info"]["flat"]

    def step(self, action: str) -> BaseTextEnvStepOutput:
        reward = (
            0.5 if self.flat else sum(letter.islower() for letter in action) / max(1, len(action))
        )
        return BaseTextEnvStepOutput(observations=[], reward=reward, done=True, metadata={})


def items(num_rows: int = 24, flat_every: int = 0) -> list[dict[str, Any]]:
    return [
        {
            "uid": f"row-{row}",
            "prompt": [{"role": "user", "content": f"write {row * 7}"}],
            "env_class": "tests.trainers.test_algorithms:LettersEnv",
            "env_extras": {
                "reward_spec": {"ground_truth": "a"},
                "extra_info": {"flat": bool(flat_every) and row % flat_every != 0},
            },
        }
        for row in range(num_rows)
    ]


def recipe_of(model_dir: Path, algorithm: dict[str, Any], **blocks: Any) -> Recipe:
    values: dict[str, Any] = {
        "name": "letters",
        "model": {"path": str(model_dir)},
        "fsdp": {"param_dtype": "float32"},
        "optimizer": {"learning_rate": 1e-2},
        "value_model": {"optimizer": {"learning_rate": 1e-2}},
        "data": {"train": ["unused"], "eval": ["unused"]},
        "algorithm": algorithm,
        "rollout": {"samples_per_prompt": NUM_SIBLINGS, "max_new_tokens": 6},
        "training": {
            "num_iterations": 1,
            "steps_per_iteration": NUM_STEPS,
            "prompts_per_step": NUM_PROMPTS,
        },
        "placement": {"threads_per_device": 1, "micro_batch_size": 8},
    }
    return Recipe.model_validate(values | blocks)


class WarmTrainer(TextTrainer):
    """A text trainer whose components stand in processes that are already there."""

    def __init__(
        self, block: Block, recipe: Recipe, source_model: str, rows: list[dict[str, Any]]
    ) -> None:
        super().__init__(recipe, source_model, rows)
        self.block = block

    def build(self) -> None:
        token = _open_block.set(self.block)
        try:
            policy = side_by_side(TOKENS, self.recipe, self.source_model)
            self.wiring = wire_replies(TRACK, self.recipe, policy, reward_service=None)
        finally:
            _open_block.reset(token)


@pytest.fixture(scope="module")
def warm(ray_cluster: None) -> Iterator[Block]:
    """One process that all trainers of this module share."""
    with placement(DevicePool(1, 1, 1, threads_per_device=1)) as block:
        yield block
    block.close()


def start(
    block: Block, model_dir: Path, recipe: Recipe, rows: list[dict[str, Any]] | None = None
) -> WarmTrainer:
    trainer = WarmTrainer(block, recipe, str(model_dir), rows or items())
    trainer.build()
    return trainer


def token_presets() -> list[str]:
    """Every registered algorithm that trains tokens."""
    names = []
    for name in algorithms.names():
        cls, config = algorithms.resolve({"name": name}, "algorithm")
        try:
            check_serves_tokens(cls(config), recipe_of(Path("unused"), {"name": name}))
        except RecipeError:
            continue
        names.append(name)
    return names


def test_the_presets_for_tokens_are_those_of_the_documentation() -> None:
    assert set(token_presets()) >= {
        *(
            "grpo",
            "dr_grpo",
            "dapo",
            "rloo",
            "reinforce_plus_plus",
            "gspo",
            "cispo",
            "sapo",
            "gmpo",
            "dppo",
            "drpo",
        ),
        *("ppo", "remax", "opo", "gpg"),
    }


@pytest.mark.parametrize("name", dict.fromkeys([*token_presets(), *BLOCKS]))
def test_an_algorithm_trains_the_tiny_model(warm: Block, tiny_model_dir: Path, name: str) -> None:
    trainer = start(
        warm, tiny_model_dir, recipe_of(tiny_model_dir, BLOCKS.get(name, {"name": name}))
    )
    before = {key: one.full_state()[0] for key, one in trainer.trained_models().items()}
    steps = [trainer.step()[0] for _ in range(NUM_STEPS)]
    for metrics in steps:
        assert (
            math.isfinite(metrics["loss"])
            and math.isfinite(metrics["grad_norm"])
            and not metrics["skipped_steps"]
        )
        assert metrics.keys() >= LOGGED.get(name, set()), sorted(metrics)
        assert metrics.keys() == steps[0].keys()
    assert any(metrics["grad_norm"] > 0 for metrics in steps)
    for key, backend in trainer.trained_models().items():
        after = backend.full_state()[0]
        assert any(not torch.equal(after[one], before[key][one]) for one in after), (
            f"{key} was not trained"
        )
    assert set(before) == ({"policy", "critic"} if name == "ppo" else {"policy"})


class OwnLevelEnv(LettersEnv):
    """Pays a hundred for each row before its own, so that prompts that are compared with each other
    show."""

    def __init__(
        self, env_config: dict[str, Any] | None = None, extras: dict[str, Any] | None = None
    ) -> None:
        super().__init__(env_config, extras)
        self.level = 100.0 * (extras or {})["extra_info"]["row"]

    def step(self, action: str) -> BaseTextEnvStepOutput:
        output = super().step(action)
        return {**output, "reward": self.level + output["reward"]}


class RecordingStack:
    """Keeps what the last step trained on."""

    def __init__(self, stack: Remote) -> None:
        self.stack = stack

    def train(self, batch: Any) -> Any:
        columns = batch.tensor("rewards"), batch.tensor("advantages"), batch.tensor("response_mask")
        self.trained = list(batch.non_tensor_batch["uid"]), *(column.tolist() for column in columns)
        return self.stack.train(batch)


@pytest.mark.parametrize(
    "dynamic", [False, True], ids=["one rollout", "groups replaced from further rollouts"]
)
def test_a_reply_is_compared_with_those_to_its_own_prompt_alone(
    warm: Block, tiny_model_dir: Path, dynamic: bool
) -> None:
    algorithm = {"name": "dr_grpo", "dynamic_sampling": dynamic}
    rows = items(24, flat_every=2)
    for number, row in enumerate(rows):
        row["env_class"] = "tests.trainers.test_algorithms:OwnLevelEnv"
        row["env_extras"]["extra_info"]["row"] = number
    trainer = start(warm, tiny_model_dir, recipe_of(tiny_model_dir, algorithm), rows)
    learner = trainer.tracks["text"].learner
    recorder: Any = RecordingStack(learner.stack)
    learner.stack = recorder
    metrics = trainer.step()[0]
    assert not dynamic or metrics["dynamic/extra_rollouts"] > 0
    uids, rewards, advantages, mask = recorder.trained
    groups: dict[str, list[int]] = {}
    for row, uid in enumerate(uids):
        groups.setdefault(uid, []).append(row)
    assert {len(group) for group in groups.values()} == {NUM_SIBLINGS}
    assert len({rewards[row] for group in groups.values() for row in group}) > len(groups)
    for group in groups.values():
        mean = sum(rewards[row] for row in group) / NUM_SIBLINGS
        for row in group:
            expected = [(rewards[row] - mean) * kept for kept in mask[row]]
            assert advantages[row] == pytest.approx(expected, abs=1e-3)


def test_an_adaptive_coefficient_moves_by_what_was_measured_and_reaches_the_ranks(
    warm: Block, tiny_model_dir: Path
) -> None:
    trainer = start(warm, tiny_model_dir, recipe_of(tiny_model_dir, BLOCKS["kl_adaptive"]))
    expected, told = 0.1, []
    for _ in range(3):
        metrics = trainer.step()[0]
        told.append(expected)
        # The KL stays far below its target of 10, so each step takes 20 % of rows / horizon.
        expected *= 1 - 0.2 * NUM_PROMPTS * NUM_SIBLINGS / 20
        assert metrics["kl_coef"] == pytest.approx(expected)
    assert trainer.tracks["text"].learner.copies.state_dict() == [
        {"kl_coef": pytest.approx(expected)}
    ]
    assert trainer.state_dict()["algorithms"] == {"text": {"kl_coef": pytest.approx(expected)}}


def test_the_greedy_reply_is_the_baseline_of_its_prompt(warm: Block, tiny_model_dir: Path) -> None:
    trainer = start(warm, tiny_model_dir, recipe_of(tiny_model_dir, {"name": "remax"}))
    prompts = prompt_batch(items()[:NUM_PROMPTS])
    rollouts, track = trainer._rollout(prompts), trainer.tracks["text"]
    trainer._reward(track, prompts, rollouts)
    rollout, greedy_P = rollouts["text"], trainer.wiring.held_out.play(prompts, 6).tensor("rewards")
    assert rollout.tensor(GREEDY).tolist() == greedy_P.repeat_interleave(NUM_SIBLINGS).tolist()
    add_advantages(track.learner.algorithm, rollout, torch.arange(len(rollout)) // NUM_SIBLINGS)
    expected_B = rollout.tensor("rewards") - rollout.tensor(GREEDY)
    assert rollout.tensor("advantages")[:, 0].tolist() == pytest.approx(expected_B.tolist())


def test_groups_that_teach_nothing_are_replaced_up_to_a_bound(
    warm: Block, tiny_model_dir: Path
) -> None:
    # One row in four earns rewards that differ: four rollouts of four prompts hold about four such
    # groups.
    algorithm = {"name": "dapo", "overlong": {"filter": False}, "max_extra_rollouts": 2}
    trainer = start(
        warm, tiny_model_dir, recipe_of(tiny_model_dir, algorithm), items(24, flat_every=4)
    )
    metrics = trainer.step()[0]
    sampled = NUM_PROMPTS * (1 + metrics["dynamic/extra_rollouts"])
    found = sampled - metrics["dynamic/flat_groups"] - metrics["dynamic/surplus_groups"]
    assert 0 < metrics["dynamic/extra_rollouts"] <= 2
    assert found + metrics["dynamic/missing_groups"] == NUM_PROMPTS
    assert metrics["zero_std_groups"] == 0
    assert metrics["dynamic/missing_groups"] == 0 or metrics["dynamic/extra_rollouts"] == 2


def test_a_step_whose_replies_were_all_cut_off_changes_nothing(
    warm: Block, tiny_model_dir: Path
) -> None:
    algorithm = {"name": "dapo", "kl": {"coef": 0.1, "adaptive": {"target": 0.01}}}
    trainer = start(warm, tiny_model_dir, recipe_of(tiny_model_dir, algorithm))
    before = trainer.backends()["policy"].full_state()[0]
    metrics = trainer.step()[0]
    after = trainer.backends()["policy"].full_state()[0]
    assert metrics["truncated_share"] == 1.0, "the test needs a model that never ends by itself"
    assert metrics["skipped_steps"] == 1.0 and metrics["kl_coef"] == 0.1
    assert all(torch.equal(after[name], before[name]) for name in before)


RESUMED: dict[str, Any] = {
    "name": "ppo",
    "dynamic_sampling": True,
    "max_extra_rollouts": 1,
    "kl": {
        "coef": 0.1,
        "kind": "k1",
        "place": "reward",
        "adaptive": {"target": 0.01, "horizon": 50},
    },
}


def test_a_resumed_run_equals_an_uninterrupted_one(
    warm: Block, tiny_model_dir: Path, tmp_path: Path
) -> None:
    """With a critic, extra rollouts, an adaptive KL in the reward and a curriculum, bit for bit."""
    data = {"train": ["unused"], "eval": ["unused"], "curriculum": {"pass_mark": 0.4}}
    recipe = recipe_of(tiny_model_dir, RESUMED, data=data)
    rows = items(24, flat_every=2)
    first = start(warm, tiny_model_dir, recipe, rows)
    first.step()
    first.save(str(tmp_path))
    state = json.dumps(first.state_dict())
    metrics = first.step()[0]
    resumed = start(warm, tiny_model_dir, recipe, rows)
    resumed.load(str(tmp_path))
    resumed.load_state_dict(json.loads(state))
    again = resumed.step()[0]
    names = [
        "loss",
        "critic/loss",
        "kl_coef",
        "reward_mean",
        "curriculum/pass_rate",
        "dynamic/flat_groups",
    ]
    assert [again[name] for name in names] == [metrics[name] for name in names]
    for key, backend in first.trained_models().items():
        one, other = backend.full_state()[0], resumed.trained_models()[key].full_state()[0]
        assert all(torch.equal(one[name], other[name]) for name in one), key
    assert resumed.state_dict() == first.state_dict()


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_two_ranks_train_on_what_was_joined_from_several_rollouts(tiny_model_dir: Path) -> None:
    placed = {"num_devices": 2, "threads_per_device": 1, "micro_batch_size": 3}
    recipe = recipe_of(tiny_model_dir, RESUMED, placement=placed)
    trainer = TextTrainer(recipe, str(tiny_model_dir), items(24, flat_every=2))
    try:
        trainer.build()
        before = trainer.trained_models()["critic"].full_state()[0]
        steps = [trainer.step()[0] for _ in range(NUM_STEPS)]
        after = trainer.trained_models()["critic"].full_state()[0]
    finally:
        trainer.close()
    assert any(metrics["dynamic/extra_rollouts"] for metrics in steps)
    assert all(metrics["grad_norm"] > 0 and metrics["critic/grad_norm"] > 0 for metrics in steps)
    assert any(not torch.equal(after[name], before[name]) for name in before)


@pytest.mark.parametrize(
    ("algorithm", "complaint"),
    [
        ({"name": "mpo"}, "learns from pairs of answers"),
        ({"name": "flow_grpo"}, "trains denoising steps"),
        ({"name": "diffusion_nft"}, "trains denoising steps"),
        (
            {"name": "grpo", "kl": {"coef": 0.1, "kind": "exact"}},
            "the exact KL exists between denoising steps",
        ),
        (
            {"name": "dapo", "overlong": {"buffer": 7}},
            "overlong.buffer is 7, but replies end at .* = 6",
        ),
    ],
)
def test_what_tokens_cannot_serve_is_refused(algorithm: dict[str, Any], complaint: str) -> None:
    cls, config = algorithms.resolve(algorithm, "algorithm")
    with pytest.raises(RecipeError, match=complaint):
        check_serves_tokens(cls(config), recipe_of(Path("unused"), algorithm))


def test_no_column_by_action_comes_to_the_driver_and_the_weights_are_those_of_the_other_way(
    warm: Block, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refs, "_get", refs._get)
    algorithm = {"name": "grpo", "overlong": {"buffer": 8, "penalty": 0.5}}
    blocks = {"rollout": {"samples_per_prompt": NUM_SIBLINGS, "max_new_tokens": 24}}
    learnt = []
    for by_row in (True, False):
        if not by_row:
            monkeypatch.setattr(PolicyGradient, "row_advantages", lambda *_, **__: None)
        trainer = start(warm, tiny_model_dir, recipe_of(tiny_model_dir, algorithm, **blocks))
        fetches = count_fetches()
        metrics = [trainer.step()[0] for _ in range(NUM_STEPS)]
        assert (sum(fetches) == 0) == by_row
        told = ("loss", "grad_norm", "zero_advantage_share", "overlong_penalty_mean")
        learnt.append(
            (
                [[step[name] for name in told] for step in metrics],
                trainer.wiring.policies["policy"].full_state()[0],  # pyright: ignore[reportAttributeAccessIssue]
            )
        )
    assert learnt[0][0] == learnt[1][0]
    assert all(torch.equal(one, learnt[1][1][name]) for name, one in learnt[0][1].items())
