"""Vocabulary rows exist for a chunk of positions at a time, in the forward pass and in the backward
pass."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM

from rl_core.models import chunked_log_probs
from rl_core.models.causal_lm import CausalLMPolicy
from rl_core.ranks.rank_info import RankInfo
from tests.train.jobs import Setup, largest_difference, train
from tests.train.ranks import Ranks

VOCABULARY, NUM_ROWS, NUM_RESPONSE = 97, 30, 100


class Widest(TorchDispatchMode):
    """Remembers the most words that any tensor over all positions had."""

    words = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if (
                isinstance(tensor, Tensor)
                and tensor.dim() == 2
                and len(tensor) == NUM_ROWS * NUM_RESPONSE
            ):
                self.words = max(self.words, tensor.shape[1])
        return out


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> int:
    """Words of a chunk; more than the model's hidden size, so that no other tensor is as wide."""
    monkeypatch.setattr(chunked_log_probs, "CHUNK_ELEMENTS", 1)
    monkeypatch.setattr(chunked_log_probs, "MIN_WORDS", 20)
    return 20


@pytest.mark.parametrize("packed", [False, True])
def test_no_more_words_than_a_chunk_exist_or_wait_for_the_backward_pass(
    packed: bool, narrow: int
) -> None:
    shape: dict[str, Any] = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    policy = CausalLMPolicy(LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, **shape)))
    policy.enable_packing()
    ids = torch.randint(0, VOCABULARY, (NUM_ROWS, 2 + NUM_RESPONSE))
    mask = torch.ones(NUM_ROWS, NUM_RESPONSE)
    kept = 0

    def keep(tensor: Tensor) -> Tensor:
        nonlocal kept
        kept += (
            tensor.numel() // VOCABULARY
            if tensor.dim() > 1 and tensor.shape[-1] == VOCABULARY
            else 0
        )
        return tensor

    positions = torch.arange(ids.shape[1]).expand_as(ids)
    with Widest() as widest, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        log_probs, entropy = policy(
            ids,
            torch.ones_like(ids),
            positions,
            mask,
            with_entropy=True,
            entropy_grad=True,
            packed=packed,
        )
        waiting = kept
        assert entropy is not None
        (log_probs.sum() + entropy.sum()).backward()
    assert widest.words == narrow
    assert waiting == 0


def chunked(
    rank_info: RankInfo, setup: Setup, min_words: int
) -> tuple[dict[str, Tensor], list[float]]:
    """Training with a chunk so small that every pass needs several."""
    former = chunked_log_probs.CHUNK_ELEMENTS, chunked_log_probs.MIN_WORDS
    chunked_log_probs.CHUNK_ELEMENTS, chunked_log_probs.MIN_WORDS = 1, min_words
    try:
        weights, results = train(rank_info, setup, [0, 1])
    finally:
        chunked_log_probs.CHUNK_ELEMENTS, chunked_log_probs.MIN_WORDS = former
    return weights, [result.loss for result in results]


@pytest.mark.parametrize("fsdp", [{}, {"root_wrap": False}, {"fsdp_mode": "grad_op"}], ids=str)
def test_recomputed_chunks_learn_the_same_under_the_wrap(
    ranks: Ranks, tiny_model_dir: Path, fsdp: dict[str, Any]
) -> None:
    whole = ranks.run(2, chunked, Setup(str(tiny_model_dir), fsdp=fsdp), 1000)[0]
    parts = ranks.run(2, chunked, Setup(str(tiny_model_dir), fsdp=fsdp), 3)[0]
    assert largest_difference(whole[0], parts[0]) < 3e-6
    assert parts[1] == pytest.approx(whole[1], abs=1e-6)
