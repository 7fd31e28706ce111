"""Training with router replay: the log-probabilities of a rollout, whatever the routers of the
trainer would choose."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from rl_core.data_proto import DataProto
from rl_core.envs import BaseTextEnv, BaseTextEnvStepOutput, register
from rl_core.envs import registration as registration_module
from rl_core.errors import ModelError
from rl_core.models.decoding.routing import ROUTING
from rl_core.ranks.rank_info import RankInfo, TrainTopology
from rl_core.rollout.engine import RolloutEngine
from rl_core.train.fsdp import FSDPBackend
from rl_core.trainers.track import prompt_batch
from schemas.sections.rollout import RolloutConfig
from tests.train.jobs import Setup, make_backend, make_stack
from tests.train.parallel import copy_of
from tests.train.ranks import Ranks

SHAPE: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 12,
    "num_key_value_heads": 2,
    "norm_topk_prob": True,
    # Wide enough that a wrong expert is felt.
    "initializer_range": 0.3,
}
ROUNDING, WRONG = 5e-4, 0.05
"""Largest difference of log-probabilities by the same experts, and a mean difference by others."""
PATHS: dict[str, dict[str, Any]] = {
    "padded": {},
    "packed": {"max_tokens_per_micro_batch": 200},
    "shared prompts": {"share_prompts": True, "micro_batch_size": 4},
    "packed and shared": {"max_tokens_per_micro_batch": 200, "share_prompts": True},
}


class TwoTurns(BaseTextEnv):
    """Answers once, and pays by the length; fails at its first turn if the row says so."""

    def __init__(
        self, env_config: dict[str, Any] | None = None, extras: dict[str, Any] | None = None
    ) -> None:
        super().__init__()
        self.fails = (extras or {})["reward_spec"]["ground_truth"] == "fail"

    def step(self, action: str) -> BaseTextEnvStepOutput:
        self.turns += 1
        if self.fails:
            raise ValueError("broken")
        observations = [] if self.turns == 2 else [{"role": "user", "content": "go on"}]
        return BaseTextEnvStepOutput(
            observations=observations,
            reward=float(len(action) % 3),
            done=self.turns == 2,
            metadata={},
        )


def prompts(*answers: str) -> DataProto:
    items = []
    for number, answer in enumerate(answers):
        items.append(
            {
                "uid": f"row-{number}",
                "prompt": [{"role": "user", "content": "hello " * (number + 1)}],
                "env_class": "two_turns",
                "env_extras": {"reward_spec": {"ground_truth": answer}},
            }
        )
    return prompt_batch(items)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def mixture(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny Qwen3-MoE of random weights."""
    folder = tmp_path_factory.mktemp("mixture")
    return str(copy_of(tiny_model_dir, folder, "qwen3_moe", **SHAPE))


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks() as started:
        yield started


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[RankInfo]:
    """A group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    monkeypatch.setattr(registration_module, "_specs", {})
    register("two_turns", TwoTurns)
    yield RankInfo(0, 1, "cpu", 1)
    dist.destroy_process_group()


def engine_of(backend: FSDPBackend, **settings: Any) -> RolloutEngine:
    config = RolloutConfig(samples_per_prompt=3, max_new_tokens=6, **settings)
    return RolloutEngine(backend, config, {}, {}, 0)


def undecided(backend: FSDPBackend) -> None:
    """Let the routers find all experts nearly equal."""
    for gate in gates(backend):
        gate.fill_(0.01)
    change_routers(backend, 0)


def change_routers(backend: FSDPBackend, seed: int) -> None:
    """Change which experts are the best, and hardly their weights."""
    generator = torch.Generator().manual_seed(seed)
    for gate in gates(backend):
        noise = 1e-5 * torch.randn(4, gate.shape[1], generator=generator)
        rows = len(gate)
        first = rows * (backend.rank_info.rank % (4 // rows))
        gate += noise[first : first + rows]


def gates(backend: FSDPBackend) -> list[torch.Tensor]:
    """This rank's part of each router."""
    found = []
    for name, weight in backend.policy.named_parameters():
        if name.endswith("gate.weight"):
            # A rank alone keeps its weights gathered after sampling.
            weight = weight.detach()
            found.append(weight.to_local() if isinstance(weight, DTensor) else weight)
    assert found
    return found


def differences(batch: DataProto, old_BT: torch.Tensor) -> torch.Tensor:
    """Of the trainer's log-probabilities from the rollout's, token by token."""
    acts_BT = batch.tensor("response_mask") != 0
    return (old_BT - batch.tensor("rollout_log_probs")).abs()[acts_BT]


def measured(backend: FSDPBackend, batch: DataProto, **stack: Any) -> torch.Tensor:
    found = make_stack(backend, Setup("", stack=stack)).measure(batch)
    assert found is not None
    return differences(batch, found.tensor("old_log_probs"))


@pytest.mark.parametrize("path", PATHS)
def test_the_trainer_gives_the_rollouts_log_probs_after_its_routers_changed(
    alone: RankInfo, mixture: str, path: str
) -> None:
    backend = make_backend(alone, Setup(mixture))
    undecided(backend)
    batch = engine_of(backend, router_replay=True).rollout(prompts("", "", "fail"), 0)
    assert batch is not None
    assert float(measured(backend, batch, **PATHS[path]).max()) < ROUNDING
    change_routers(backend, 1)
    assert float(measured(backend, batch, **PATHS[path]).mean()) > WRONG
    replayed = measured(backend, batch, router_replay=True, **PATHS[path])
    assert float(replayed.max()) < ROUNDING


def test_a_row_of_several_turns_has_experts_of_all_tokens_but_the_last_sampled(
    alone: RankInfo, mixture: str
) -> None:
    backend = make_backend(alone, Setup(mixture))
    batch = engine_of(backend, router_replay=True).rollout(prompts("", "fail"), 0)
    assert batch is not None
    assert batch.tensor("num_turns").tolist() == [2, 2, 2, 1, 1, 1]
    lengths = batch.tensor("attention_mask").sum(1).tolist()
    for length, routing in zip(lengths, batch.non_tensor_batch[ROUTING], strict=True):
        assert isinstance(routing, np.ndarray) and routing.dtype == np.uint8
        assert routing.shape == (length - 1, len(gates(backend)), 2)
    plain = engine_of(backend).rollout(prompts(""), 0)
    assert plain is not None and ROUTING not in plain.non_tensor_batch


@pytest.mark.parametrize("recomputes", [False, True], ids=["kept", "recomputed"])
def test_replayed_updates_train_the_routers(
    alone: RankInfo, mixture: str, recomputes: bool
) -> None:
    setup = Setup(
        mixture,
        fsdp={"activation_checkpointing": recomputes},
        stack={"num_updates_per_batch": 2, "router_replay": True},
    )
    backend = make_backend(alone, setup)
    undecided(backend)
    batch = engine_of(backend, router_replay=True).rollout(prompts("", ""), 0)
    assert batch is not None and batch.batch is not None
    change_routers(backend, 1)
    before = [gate.clone() for gate in gates(backend)]
    signs_B1 = torch.tensor([1.0, -1.0, 1.0] * 2)[:, None]
    batch.batch["advantages"] = batch.tensor("response_mask") * signs_B1
    result = make_stack(backend, setup).train(batch)
    assert result.grad_norm > 0
    for old, new in zip(before, gates(backend), strict=True):
        assert float((new - old).abs().max()) > 1e-6


def test_the_reference_chooses_its_own_experts(alone: RankInfo, mixture: str) -> None:
    algorithm = {"name": "grpo", "kl": {"coef": 0.1, "place": "reward"}}
    setup = Setup(mixture, algorithm=algorithm, stack={"router_replay": True})
    backend = make_backend(alone, setup, with_reference=True)
    batch = engine_of(backend, router_replay=True).rollout(prompts("", ""), 0)
    assert batch is not None
    with_replay = make_stack(backend, setup).measure(batch)
    others = batch.non_tensor_batch[ROUTING]
    for row, routing in enumerate(others):
        others[row] = (routing + 1) % 4
    misled = make_stack(backend, setup).measure(batch)
    assert with_replay is not None and misled is not None
    ref, old = "ref_log_probs", "old_log_probs"
    assert torch.equal(with_replay.tensor(ref), misled.tensor(ref))
    assert float((with_replay.tensor(old) - misled.tensor(old)).abs().max()) > WRONG


def test_a_rollout_without_the_column_is_refused_by_name(alone: RankInfo, mixture: str) -> None:
    backend = make_backend(alone, Setup(mixture))
    batch = engine_of(backend).rollout(prompts(""), 0)
    assert batch is not None
    with pytest.raises(ModelError, match=r"router_replay: the engine's rollout has no column"):
        measured(backend, batch, router_replay=True)


def test_a_model_without_experts_is_refused_where_it_is_loaded(
    alone: RankInfo, tiny_model_dir: Path
) -> None:
    backend = make_backend(alone, Setup(str(tiny_model_dir)))
    with pytest.raises(ModelError, match=r"router_replay: .* has no experts that a router chooses"):
        engine_of(backend, router_replay=True)
    with pytest.raises(ModelError, match=r"router_replay: .* has no experts that a router chooses"):
        make_stack(backend, Setup("", stack={"router_replay": True}))


def sampled_then_measured(
    rank_info: RankInfo, topology: TrainTopology, setup: Setup
) -> tuple[torch.Tensor, torch.Tensor]:
    """Differences without and with replay, on this rank's own rows, after the routers changed."""
    if "two_turns" not in registration_module._specs:
        register("two_turns", TwoTurns)
    backend = make_backend(replace(rank_info, topology=topology), setup)
    undecided(backend)
    batch = engine_of(backend, router_replay=True).rollout(prompts("", ""), 0)
    assert batch is not None
    change_routers(backend, 1)
    return measured(backend, batch), measured(backend, batch, router_replay=True)


@pytest.mark.parametrize("topology", [TrainTopology(), TrainTopology(ep_size=2)], ids=["", "ep"])
def test_ranks_that_share_experts_or_weights_replay_too(
    ranks: Ranks, mixture: str, topology: TrainTopology
) -> None:
    for own, replayed in ranks.run(2, sampled_then_measured, topology, Setup(mixture)):
        assert float(own.mean()) > WRONG
        assert float(replayed.max()) < ROUNDING
