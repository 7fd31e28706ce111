"""After a sync the dedicated engine says what the trainer says, over every way; whatever else it
holds is caught."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from rl_core.data_proto import DataProto
from rl_core.distributed import DevicePool, Remote, placement, remote
from rl_core.distributed.weight_sync import WeightSync
from rl_core.errors import StaleEngine, WeightMismatch
from rl_core.models.bundle import ModelBundle
from rl_core.train.fsdp import FSDPBackend
from rl_core.train.weights.buckets import WeightVersion
from schemas.recipe import (
    EmaFullConfig,
    FSDPConfig,
    LoraConfig,
    LrSchedulerConfig,
    ModelConfig,
    OptimizerConfig,
)
from schemas.sections.rollout import (
    RolloutConfig,
    SyncConfig,
    SyncContent,
    SyncMode,
    SyncTransport,
)
from schemas.sections.section import DType
from tests.distributed.sync_parts import Learner, Scorer, TamperingEngine

BUCKET_BYTES = 5000
LORA = LoraConfig(rank=4, alpha=8)
# Log-probabilities near -4.5 computed in bfloat16, eight bits of precision.
BF16_TOLERANCE = 0.05
BASE = "model.model.layers.1.mlp.up_proj.weight"
INJECTED = "model.base_model.model.model.layers.1.mlp.up_proj"


@dataclass
class Pair:
    """A trained model and a dedicated engine, with a sync for each transport."""

    backend: Remote
    engine: Remote
    learner: Remote
    trainer_says: Remote
    engine_says: Remote
    syncs: dict[SyncTransport, Remote]

    def distance(self, *, evaluation: bool = False) -> float:
        """Largest difference of log-probabilities between the trainer and any engine rank."""
        mine: Tensor = self.trainer_says.log_probs(evaluation=evaluation)[0]
        return max(float((mine - theirs).abs().max()) for theirs in self.engine_says.log_probs())


CASES: dict[str, tuple[LoraConfig | None, SyncMode, EmaFullConfig | None]] = {
    "full": (None, SyncMode.FULL, None),
    "adapter": (LORA, SyncMode.ADAPTER, None),
    "merged": (LORA, SyncMode.FULL, None),
    "average": (None, SyncMode.FULL, EmaFullConfig(decay=0.5, mirror=True, rollout=True)),
}
BUILT = CASES | {
    "never synced": CASES["adapter"],
    "twisted": CASES["full"],
    "twisted later": CASES["full"],
}


@pytest.fixture(scope="module")
def pairs(ray_cluster: None, tiny_model_dir: Path) -> Iterator[dict[str, Pair]]:
    """Two ranks that train, two that sample, and on them a pair per case."""
    path = str(tiny_model_dir)
    with placement(DevicePool(4, threads_per_device=1, collective_timeout_s=120)) as whole:
        with placement(whole.pool, fraction=0.5):
            engines = {name: engine(path, lora, mode) for name, (lora, mode, _) in BUILT.items()}
            engine_says = {name: remote(Scorer, one) for name, one in engines.items()}
        with placement(whole.pool, fraction=0.5):
            made = {}
            for name, (lora, mode, ema) in BUILT.items():
                backend = trained(path, lora, ema)
                syncs = {
                    way: remote(
                        WeightSync,
                        backend=backend,
                        rollout=engines[name],
                        config=SyncConfig(transport=way, mode=mode, bucket_bytes=BUCKET_BYTES),
                    )
                    for way in SyncTransport
                }
                learner, says = remote(Learner, backend), remote(Scorer, backend)
                made[name] = Pair(backend, engines[name], learner, says, engine_says[name], syncs)
    yield made
    whole.close()


def engine(path: str, lora: LoraConfig | None, mode: SyncMode) -> Remote:
    model = ModelConfig(path=path)
    return remote(
        TamperingEngine, path, model, lora, mode, DType.BFLOAT16, RolloutConfig(), {}, {}, 0
    )


def trained(path: str, lora: LoraConfig | None, ema: EmaFullConfig | None) -> Remote:
    return remote(
        FSDPBackend,
        remote(ModelBundle, path, ModelConfig(path=path)),
        FSDPConfig(),
        OptimizerConfig(learning_rate=3e-2),
        LrSchedulerConfig(),
        lora,
        total_steps=100,
        seed=0,
        with_reference=False,
        ema_cfg=ema,
    )


@pytest.mark.parametrize("way", SyncTransport)
@pytest.mark.parametrize("case", CASES)
def test_after_each_sync_the_engine_says_what_the_trainer_says(
    pairs: dict[str, Pair], case: str, way: SyncTransport
):
    pair = pairs[case]
    sync, versions = pair.syncs[way], []
    for _ in range(3):
        assert pair.learner.learn()[0]["skipped"] == 0.0
        before = pair.distance()
        report = sync.sync()
        versions.append(report.version)
        assert pair.engine.weight_version() == pair.backend.weight_version() == report.version
        assert pair.distance() < min(BF16_TOLERANCE, before / 2)
        full = -(-report.num_bytes // (BUCKET_BYTES // 2 * 2))
        # The last bucket of each rank that sends may be smaller.
        assert 0 <= report.num_buckets - full <= (way is SyncTransport.SHARDS)
    assert [version.number for version in versions] == list(
        range(versions[0].number, versions[0].number + 3)
    )


@pytest.mark.parametrize("case", ["full", "adapter"])
def test_unmerged_weights_arrive_exactly(pairs: dict[str, Pair], case: str):
    # Both sides compute in bfloat16, which is what travelled.
    pairs[case].learner.learn()
    pairs[case].syncs[SyncTransport.OBJECT_STORE].sync()
    assert pairs[case].distance() == 0.0


def test_an_adapter_is_a_small_part_of_the_weights(pairs: dict[str, Pair]):
    sent = {}
    for case in ("full", "adapter", "merged"):
        pairs[case].learner.learn()
        sent[case] = pairs[case].syncs[SyncTransport.BROADCAST].sync().num_bytes
    full = pairs["full"].backend.full_state()[0]
    # The model ties its head to its embedding, which travels once.
    total = sum(2 * weight.numel() for name, weight in full.items() if "lm_head" not in name)
    assert sent["full"] == sent["merged"] == total
    assert sent["adapter"] < total / 2


def test_what_changed_is_not_known_where_each_rank_sends_its_part():
    with pytest.raises(ValidationError, match=r"content: changes: with transport: shards no rank"):
        SyncConfig(transport=SyncTransport.SHARDS, content=SyncContent.CHANGES)


def test_nothing_is_sent_twice(pairs: dict[str, Pair]):
    pair = pairs["full"]
    pair.learner.learn()
    sync = pair.syncs[SyncTransport.OBJECT_STORE]
    first, second = sync.sync(), sync.sync()
    assert first.num_buckets > 1
    assert (second.version, second.num_buckets, second.num_bytes) == (first.version, 0, 0)


def test_rollouts_get_the_average_and_evaluations_the_weights(pairs: dict[str, Pair]):
    pair = pairs["average"]
    sync = pair.syncs[SyncTransport.OBJECT_STORE]
    pair.learner.learn()
    assert sync.sync().version.averaged
    assert pair.distance() < BF16_TOLERANCE < pair.distance(evaluation=True)
    assert not sync.sync(evaluation=True).version.averaged
    assert pair.distance(evaluation=True) < BF16_TOLERANCE < pair.distance()


@pytest.mark.parametrize("way", SyncTransport)
@pytest.mark.parametrize(
    ("case", "weight"),
    [("full", BASE), ("merged", BASE), ("adapter", f"{INJECTED}.lora_B.default.weight")],
)
def test_one_tampered_bit_is_caught_and_the_engine_refuses(
    pairs: dict[str, Pair], case: str, weight: str, way: SyncTransport
):
    pair = pairs[case]
    pair.learner.learn()
    pair.engine.tamper(weight)
    with pytest.raises(
        WeightMismatch, match=rf"1 of \d+ tensors differ from the trainer's, first {weight};"
    ):
        pair.syncs[way].sync()
    assert pair.engine.weight_version() is None
    with pytest.raises(StaleEngine, match="no complete weights"):
        pair.engine.rollout(prompts(), 0)
    pair.engine.tamper(None)
    # The same version again, in full, though only one of the training ranks saw the failure.
    assert pair.syncs[way].sync().num_buckets > 1
    assert pair.distance() < BF16_TOLERANCE


def test_a_sync_that_failed_leaves_nothing_that_counts_as_held(pairs: dict[str, Pair]):
    """The engine held the average before weights for an evaluation failed to arrive; it holds
    neither afterwards."""
    pair = pairs["average"]
    sync = pair.syncs[SyncTransport.OBJECT_STORE]
    pair.learner.learn()
    average = sync.sync().version
    pair.engine.tamper(BASE)
    with pytest.raises(WeightMismatch):
        sync.sync(evaluation=True)
    pair.engine.tamper(None)
    again = sync.sync()
    assert again.version == average and again.num_buckets > 1
    assert pair.distance() < BF16_TOLERANCE


def test_a_wrong_base_under_the_adapters_is_caught_at_the_first_sync(pairs: dict[str, Pair]):
    pair, base = pairs["never synced"], f"{INJECTED}.base_layer.weight"
    sync = pair.syncs[SyncTransport.OBJECT_STORE]
    pair.engine.tamper(base)
    with pytest.raises(WeightMismatch, match=rf"first {base};"):
        sync.sync()
    pair.engine.tamper(base, now=True)
    pair.engine.tamper(None)
    sync.sync()
    assert pair.distance() == 0.0


def test_an_engine_that_computes_otherwise_with_the_same_weights_is_caught_at_the_first_sync(
    pairs: dict[str, Pair],
):
    pair = pairs["twisted"]
    pair.engine.twist()
    said = r"weights \d+: it does not say what .* differ by up to .* where rounding explains"
    for _ in range(2):
        # What was refused once does not pass as held by the engine.
        with pytest.raises(WeightMismatch, match=said):
            pair.syncs[SyncTransport.OBJECT_STORE].sync()


def test_an_engine_that_computes_otherwise_later_is_caught_at_the_second_sync(
    pairs: dict[str, Pair],
):
    pair = pairs["twisted later"]
    pair.syncs[SyncTransport.OBJECT_STORE].sync()
    pair.learner.learn()
    pair.engine.twist()
    with pytest.raises(WeightMismatch, match="it does not say what the trainer says"):
        pair.syncs[SyncTransport.OBJECT_STORE].sync()


def test_loaded_weights_are_another_version(pairs: dict[str, Pair], tmp_path: Path):
    pair = pairs["adapter"]
    sync = pair.syncs[SyncTransport.BROADCAST]
    pair.learner.learn()
    pair.backend.save(str(tmp_path / "saved"))
    saved = pair.trainer_says.log_probs()[0]
    pair.learner.learn()
    sync.sync()
    pair.backend.load(str(tmp_path / "saved"))
    current: WeightVersion = pair.backend.weight_version()
    with pytest.raises(
        StaleEngine,
        match=rf"with weights {current}, the rollout engine holds weights {current.number - 1}",
    ):
        pair.engine.rollout(prompts(), 0, current)
    sync.sync()
    assert pair.distance() == 0.0
    assert torch.equal(pair.engine_says.log_probs()[0], saved)
    rolled: Any = pair.engine.rollout(prompts(), 0, current)
    assert len(rolled) == 2 * RolloutConfig().samples_per_prompt


def prompts() -> DataProto:
    item = {
        "uid": "row",
        "prompt": [{"role": "user", "content": "2 + 3"}],
        "env_class": "gsm8k",
        "env_extras": {"reward_spec": {"ground_truth": "5"}},
    }
    return DataProto.from_dict(non_tensors={"item": [item, item]})
