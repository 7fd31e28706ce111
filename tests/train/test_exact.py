"""With `model.exact` a token has the same bits in the rollout and in training, whatever else is in
the batch."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest
import torch

from rl_core.data_proto import DataProto, pad_rows
from rl_core.errors import ModelError
from rl_core.models.bundle import ModelBundle
from rl_core.models.decoding.decode import positions_of
from rl_core.models.decoding.request import Request
from rl_core.ranks.rank_info import RankInfo
from rl_core.rollout.engine import RolloutEngine
from schemas.recipe import LoraConfig, ModelConfig
from schemas.sections.rollout import RolloutConfig
from tests.models.checks.test_probe import KINDS, saved
from tests.train.jobs import Setup, make_backend
from tests.train.ranks import Ranks

PROMPTS = ([5, 9, 11], [7, 8, 6, 12, 9, 5, 10, 11], [6])
NUM_SIBLINGS, NUM_TOKENS = 3, 40


def sampled_and_trained(
    rank_info: RankInfo, model_dir: str, param_dtype: str, lora: LoraConfig | None, exact: bool
) -> tuple[list[list[float]], list[list[float]], list[float]]:
    """Log-probabilities of sampled tokens by the engine and by the trainer's forward, and some
    gradient's norm."""
    bundle = ModelBundle(model_dir, ModelConfig(path=model_dir, exact=exact))
    setup = Setup(model_dir, fsdp={"param_dtype": param_dtype}, lora=lora)
    backend = make_backend(rank_info, setup, bundle=bundle)
    if lora is not None:
        generator = torch.Generator().manual_seed(1)
        for name, value in backend.policy.named_parameters():
            if "lora_B" in name:
                value.data._local_tensor.copy_(0.3 * torch.randn(value.shape, generator=generator))
    engine = RolloutEngine(backend, RolloutConfig(), {}, {}, 0)
    requests = [Request(list(prompt), NUM_SIBLINGS, NUM_TOKENS) for prompt in PROMPTS]
    with engine.decoding(
        engine.sampling(NUM_TOKENS, 0.8), torch.Generator().manual_seed(0)
    ) as generate:
        replies = generate(requests)
    rows = [
        (list(PROMPTS[index // NUM_SIBLINGS]), reply.token_ids, reply.log_probs)
        for index, reply in enumerate(replies)
    ]
    ids = torch.cat(
        [
            pad_rows([torch.tensor(prompt) for prompt, _, _ in rows], 0, left=True),
            pad_rows([torch.tensor(tokens) for _, tokens, _ in rows], 0),
        ],
        1,
    )
    used = torch.cat(
        [
            pad_rows([torch.ones(len(prompt)).long() for prompt, _, _ in rows], 0, left=True),
            pad_rows([torch.ones(len(tokens)).long() for _, tokens, _ in rows], 0),
        ],
        1,
    )
    acts = pad_rows([torch.ones(len(tokens)).long() for _, tokens, _ in rows], 0)
    trained: list[list[float]] = []
    norms = []
    # Other rows beside them than in the rollout, in other numbers.
    for some in (slice(0, 2), slice(2, 9)):
        log_probs_BT, _ = backend.policy(
            ids[some], used[some], positions_of(used[some]), acts[some], temperature=0.8
        )
        log_probs_BT.sum().backward()
        trained += [
            row[: len(tokens)]
            for row, (_, tokens, _) in zip(log_probs_BT.tolist(), rows[some], strict=True)
        ]
    norms = [
        float(value.grad.full_tensor().norm())
        for value in backend.trainable.values()
        if value.grad is not None
    ]
    return [log_probs for _, _, log_probs in rows], trained, norms


def unpacked(
    rank_info: RankInfo, model_dir: str
) -> tuple[list[list[float]], list[list[float]], list[float]]:
    """What `sampled_and_trained` returns for exact bfloat16 on a processor without AVX-512."""
    with mock.patch.object(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False):
        return sampled_and_trained(rank_info, model_dir, "bfloat16", None, exact=True)


@pytest.mark.parametrize("param_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("lora", [None, LoraConfig(rank=4, alpha=8)], ids=["full", "lora"])
def test_the_trainer_says_the_bits_that_the_engine_said(
    ranks: Ranks, tiny_model_dir: Path, param_dtype: str, lora: LoraConfig | None
) -> None:
    engine, trainer, norms = ranks.run(
        1, sampled_and_trained, str(tiny_model_dir), param_dtype, lora, True
    )[0]
    assert engine == trainer
    # The backward pass is the usual one.
    _, _, usual = ranks.run(1, sampled_and_trained, str(tiny_model_dir), "float32", lora, False)[0]
    if param_dtype == "float32":
        assert norms == pytest.approx(usual, rel=1e-3)
    assert len(norms) == len(usual)


def test_it_says_them_where_weights_cannot_be_packed(ranks: Ranks, tiny_model_dir: Path) -> None:
    engine, trainer, _ = ranks.run(1, unpacked, str(tiny_model_dir))[0]
    assert engine == trainer


def test_without_it_they_differ_in_bfloat16_by_rounding(ranks: Ranks, tiny_model_dir: Path) -> None:
    engine, trainer, _ = ranks.run(
        1, sampled_and_trained, str(tiny_model_dir), "bfloat16", None, False
    )[0]
    differences = [
        abs(a - b)
        for one, two in zip(engine, trainer, strict=True)
        for a, b in zip(one, two, strict=True)
    ]
    assert 0 < sum(differences) / len(differences) < 0.05


@pytest.mark.parametrize("kind", ["stablelm", "falcon"])
def test_a_model_that_cannot_is_refused(kind: str, tmp_path: Path) -> None:
    from rl_core.models.causal_lm import load_policy

    saved(kind, tmp_path)
    assert kind in KINDS
    policy = load_policy(str(tmp_path), ModelConfig(path=str(tmp_path)))
    with pytest.raises(
        ModelError, match=r"model\.exact: true: .*ForCausalLM .*set model\.exact to false"
    ):
        policy.make_exact()


def test_packing_is_refused_beside_it(tiny_model_dir: Path) -> None:
    from rl_core.models.causal_lm import load_policy

    policy = load_policy(str(tiny_model_dir), ModelConfig(path=str(tiny_model_dir)))
    policy.make_exact()
    assert not policy.enable_prompt_sharing()
    with pytest.raises(ModelError, match="packed rows are no exact ones"):
        policy.enable_packing()
    assert isinstance(DataProto, type)
