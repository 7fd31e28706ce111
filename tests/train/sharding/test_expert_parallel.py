"""Expert parallelism: experts dealt out over ranks train like those of one rank."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, GptOssConfig, Qwen3MoeConfig

from rl_core.errors import ModelError
from rl_core.ranks.rank_info import RankInfo, TrainTopology
from rl_core.train.sharding.expert_parallel import check_expert_parallel
from rl_core.train.weights.buckets import kept_weights, sent_weights
from schemas.recipe import EmaFullConfig, LoraConfig
from schemas.sections.rollout import SyncMode
from tests.train.jobs import Setup, batch, largest_difference, log_probs, same_bits
from tests.train.parallel import (
    STEPS,
    build,
    copy_of,
    load,
    local_shapes,
    log_probs_of,
    reference_log_probs,
    save,
    train,
)
from tests.train.ranks import Ranks

NUM_EXPERTS = 4
SHAPE: dict[str, Any] = {
    "num_experts": NUM_EXPERTS,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 12,
    "num_key_value_heads": 2,
    "norm_topk_prob": True,
    # Wide enough that a wrong expert is felt.
    "initializer_range": 0.2,
}
ATTENTION = LoraConfig(rank=4, alpha=8, target_modules=["q_proj", "v_proj"])


def qwen3_moe(num_experts: int = NUM_EXPERTS) -> Any:
    config = Qwen3MoeConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_experts=num_experts,
        num_experts_per_tok=2,
        moe_intermediate_size=12,
    )
    return AutoModelForCausalLM.from_config(config)


@pytest.fixture(scope="module")
def mixture(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny Qwen3-MoE of random weights."""
    folder = tmp_path_factory.mktemp("mixture")
    return str(copy_of(tiny_model_dir, folder, "qwen3_moe", **SHAPE))


@pytest.fixture(scope="module")
def four_ranks() -> Iterator[Ranks]:
    with Ranks(4) as started:
        yield started


def assert_alike(one: Any, two: Any, limit: float = 1e-5) -> None:
    (weights, results), (got_weights, got_results) = one, two
    assert largest_difference(weights, got_weights) < limit
    for name in ("grad_norm", "loss"):
        said = [getattr(result, name) for result in results]
        assert [getattr(result, name) for result in got_results] == pytest.approx(said, abs=limit)


CASES: dict[str, dict[str, Any]] = {
    "weights": {},
    "adapters beside attention": {"lora": ATTENTION},
    "entropy, several updates, deferred sync": {
        "algorithm": {"name": "grpo", "entropy_coef": 0.01},
        "fsdp": {"defer_grad_sync": True, "root_wrap": False},
        "stack": {"num_epochs": 2},
    },
    "packed and recomputed": {
        "fsdp": {"activation_checkpointing": True},
        "stack": {"max_tokens_per_micro_batch": 24},
    },
    "average in a second model": {"ema": EmaFullConfig(decay=0.5, mirror=True)},
    "Muon": {"optimizer": {"name": "muon"}},
    "bytes": {"optimizer": {"name": "adamw_8bit"}},
}


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_that_share_experts_train_like_one(ranks: Ranks, mixture: str, case: str) -> None:
    setup = Setup(mixture, **CASES[case])
    whole = ranks.once(1, train, TrainTopology(), setup, STEPS)[0]
    got = ranks.run(2, train, TrainTopology(ep_size=2), setup, STEPS)[0]
    # Muon orthogonalises in bfloat16, which enlarges the rounding of sums.
    assert_alike(whole, got, 2e-4 if case == "Muon" else 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "topology",
    [
        pytest.param(TrainTopology(ep_size=2), marks=pytest.mark.long),
        pytest.param(TrainTopology(ep_size=4), marks=pytest.mark.long),
        TrainTopology(ep_size=2, shard_size=2),
        TrainTopology(ep_size=2, sp_size=2),
    ],
    ids=["two holders", "an expert each", "two copies", "shared sequences"],
)
def test_four_ranks_train_like_one(
    four_ranks: Ranks, mixture: str, topology: TrainTopology
) -> None:
    setup = Setup(mixture)
    whole = four_ranks.once(1, train, TrainTopology(), setup, STEPS)[0]
    assert_alike(whole, four_ranks.run(4, train, topology, setup, STEPS)[0])


FAMILIES: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 4},
    "qwen2_moe": {
        "num_experts": 4,
        "moe_intermediate_size": 12,
        "shared_expert_intermediate_size": 12,
    },
    # With biases, and matrices stored the other way round.
    "gpt_oss": {"num_local_experts": 4},
}


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_experts_of_other_families_train_like_those_of_one_rank(
    ranks: Ranks, tiny_model_dir: Path, tmp_path: Path, family: str
) -> None:
    shape = {"num_experts_per_tok": 2, "num_key_value_heads": 2, "initializer_range": 0.2}
    setup = Setup(str(copy_of(tiny_model_dir, tmp_path, family, **shape | FAMILIES[family])))
    whole = ranks.once(1, train, TrainTopology(), setup, STEPS)[0]
    assert_alike(whole, ranks.run(2, train, TrainTopology(ep_size=2), setup, STEPS)[0])


@pytest.mark.long
def test_holders_may_share_experts_unevenly(
    four_ranks: Ranks, tiny_model_dir: Path, tmp_path: Path
) -> None:
    folder = copy_of(tiny_model_dir, tmp_path / "six", "qwen3_moe", **SHAPE | {"num_experts": 6})
    setup, topology = Setup(str(folder)), TrainTopology(ep_size=2)
    whole = four_ranks.once(1, train, TrainTopology(), setup, STEPS)[0]
    assert_alike(whole, four_ranks.run(4, train, topology, setup, STEPS)[0])
    folders = str(tmp_path / "checkpoint"), str(tmp_path / "exported")
    four_ranks.run(4, save, topology, setup, *folders)
    resumed = four_ranks.run(2, load, topology, setup, folders[0])[0]
    assert largest_difference(whole[0], resumed) < 1e-5


def test_the_reference_is_dealt_out_too(ranks: Ranks, mixture: str) -> None:
    setup = Setup(mixture)
    whole = ranks.once(1, reference_log_probs, TrainTopology(), setup)[0]
    for got in ranks.run(2, reference_log_probs, TrainTopology(ep_size=2), setup):
        torch.testing.assert_close(got, whole, atol=1e-5, rtol=0)


def test_a_rank_holds_half_of_the_experts_and_of_what_it_shards(ranks: Ranks, mixture: str) -> None:
    setup = Setup(mixture)
    whole = ranks.run(1, local_shapes, TrainTopology(), setup)[0]
    for held in ranks.run(2, local_shapes, TrainTopology(ep_size=2), setup):
        for name in ("mlp.experts.gate_up_proj", "mlp.experts.down_proj"):
            assert held[name] == (NUM_EXPERTS // 2, *whole[name][1:])


@pytest.mark.parametrize(("before", "after"), [(2, 2), (2, 1), (1, 2)])
def test_training_resumes_from_a_checkpoint_on_as_many_or_other_ranks(
    ranks: Ranks, mixture: str, tmp_path: Path, before: int, after: int
) -> None:
    setup = Setup(mixture)
    straight, _ = ranks.once(1, train, TrainTopology(), setup, STEPS)[0]
    folders = str(tmp_path / "checkpoint"), str(tmp_path / "exported")
    ranks.run(before, save, TrainTopology(ep_size=before), setup, *folders)
    resumed = ranks.run(after, load, TrainTopology(ep_size=after), setup, folders[0])[0]
    assert largest_difference(straight, resumed) < 1e-5


@pytest.mark.long
def test_a_checkpoint_of_several_holders_loads_on_another_layout(
    four_ranks: Ranks, mixture: str, tmp_path: Path
) -> None:
    setup = Setup(mixture)
    straight, _ = four_ranks.once(1, train, TrainTopology(), setup, STEPS)[0]
    folders = str(tmp_path / "checkpoint"), str(tmp_path / "exported")
    four_ranks.run(4, save, TrainTopology(ep_size=2), setup, *folders)
    for topology in (TrainTopology(ep_size=4), TrainTopology()):
        resumed = four_ranks.run(4, load, topology, setup, folders[0])[0]
        assert largest_difference(straight, resumed) < 1e-5


@pytest.mark.parametrize("lora", [None, ATTENTION], ids=["weights", "lora"])
def test_the_exported_model_is_that_of_one_rank(
    ranks: Ranks, mixture: str, tmp_path: Path, lora: LoraConfig | None
) -> None:
    setup = Setup(mixture, lora=lora)
    for ep_size in (1, 2):
        folders = str(tmp_path / f"checkpoint-{ep_size}"), str(tmp_path / f"exported-{ep_size}")
        ranks.run(ep_size, save, TrainTopology(ep_size=ep_size), setup, *folders)
    one, two = (log_probs_of(str(tmp_path / f"exported-{ep_size}")) for ep_size in (1, 2))
    torch.testing.assert_close(one, two, atol=1e-5, rtol=0)
    assert not torch.allclose(one, log_probs_of(mixture), atol=1e-4)


def sampled_and_sent(
    rank_info: RankInfo, topology: TrainTopology, setup: Setup
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """What the gathered policy says of rows that only this rank reads, before and after a training
    step, and what an engine of its own would be sent, beside the whole weights."""
    backend, stack = build(rank_info, topology, setup)
    stack.train(batch(0))
    with backend.gathered() as policy:
        said = log_probs(policy, batch(9 + rank_info.rank, num_rows=2 + 2 * rank_info.rank))
    sent = dict(sent_weights(backend, SyncMode.FULL, torch.float32, averaged=False))
    assert not dict(kept_weights(backend, SyncMode.FULL))
    sent = {name: value.detach().clone() for name, value in sent.items()}
    return said, sent, backend.full_state()


def test_each_rank_samples_alone_and_engines_are_sent_whole_weights(
    ranks: Ranks, mixture: str
) -> None:
    setup = Setup(mixture)
    said, _, _ = ranks.run(1, sampled_and_sent, TrainTopology(), setup)[0]
    first, second = ranks.run(2, sampled_and_sent, TrainTopology(ep_size=2), setup)
    torch.testing.assert_close(first[0], said, atol=1e-5, rtol=0)
    assert len(second[0]) == 4
    assert same_bits(first[1], first[2]) and same_bits(second[1], first[2])


@pytest.mark.parametrize("ep_size", [1, 2, 3, 6])
def test_sizes_that_divide_the_experts_fit(ep_size: int) -> None:
    check_expert_parallel(qwen3_moe(6), ep_size)


def test_a_size_that_does_not_divide_is_refused_with_those_that_do() -> None:
    with pytest.raises(ModelError, match=r"ep_size 4 .* 6 experts .*sizes that fit: 1, 2, 3, 6$"):
        check_expert_parallel(qwen3_moe(6), 4)


def test_a_model_without_experts_is_refused_by_name(tiny_model_dir: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir)
    with pytest.raises(ModelError, match=rf"ep_size 2: {type(model).__name__} has no stacks of"):
        check_expert_parallel(model, 2)


def test_adapters_on_experts_are_refused_by_name() -> None:
    from peft import LoraConfig as PeftLoraConfig
    from peft import get_peft_model

    settings = PeftLoraConfig(r=2, target_parameters=["mlp.experts.down_proj"])
    model = get_peft_model(qwen3_moe(), settings)
    with pytest.raises(ModelError, match=r"lora.target_modules: .*mlp.experts adapts experts"):
        check_expert_parallel(model, 2)


def test_experts_with_biases_fit() -> None:
    config = GptOssConfig(
        vocab_size=20,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_local_experts=4,
    )
    check_expert_parallel(AutoModelForCausalLM.from_config(config), 2)
