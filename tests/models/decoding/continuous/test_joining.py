"""Rows that join a batch and leave it say what each says by itself, whatever the cache is like."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rl_core.kernels import Packed
from rl_core.models.causal_lm import CausalLMPolicy, load_policy
from rl_core.models.decoding.continuous.joined_batches import JoinedBatches
from rl_core.models.decoding.continuous.joining import JoinedRows
from rl_core.models.decoding.decode import decode
from rl_core.models.decoding.decoder_memory import WholeRows
from rl_core.models.decoding.next_states import ByPlainDecoder
from rl_core.models.decoding.request import Request, Sampling
from schemas.recipe import ModelConfig
from tests.models.tiny_causal import Case, save

PROMPTS = [[5, 9, 11], [7, 8, 9, 10, 11, 12, 13, 14, 15, 16], [20], [30, 31, 32, 33, 34, 35]]
LENGTHS = [4, 9, 14, 3]
ARRIVALS = [0, 0, 2, 5]
CPU = torch.device("cpu")
Said = tuple[list[int], list[float]]
"""Tokens and log-probabilities of a reply."""
FAMILIES = {
    "plain": (Case("llama"), 1),
    "sliding windows": (
        Case("gemma3_text", shape={"sliding_window": 4, "head_dim": 8}),
        3,
    ),
    "recurrences": (Case("mamba"), 3),
}
"""Family, and the number of batches that its rows need."""


def alone(policy: CausalLMPolicy, prompt: list[int], length: int) -> Said:
    (reply,) = decode(
        policy, [Request(prompt, 1, length)], Sampling(length, 0.0, (), 0), torch.Generator(), CPU
    )
    return reply.token_ids, reply.log_probs


class Greedy:
    """A row that takes the most probable tokens."""

    is_wanted = True

    def __init__(self, length: int) -> None:
        self.length = length
        self.said: Said = [], []

    def draw_from(self, logits_1V: Tensor) -> tuple[Tensor, bool]:
        scores = logits_1V.float().log_softmax(-1)
        token_1 = scores.argmax(-1)
        self.said[0].append(int(token_1))
        self.said[1].append(float(scores[0, token_1]))
        return token_1, len(self.said[0]) < self.length


def fail(rows: Sequence[Greedy], error: Exception) -> None:
    raise error


@torch.no_grad()
def together(policy: CausalLMPolicy, packed: Packed) -> tuple[list[Greedy], int]:
    """Greedy replies of rows that arrive and leave at different steps, two to each prompt, and the
    most batches."""
    rows = [Greedy(length) for length in LENGTHS for _ in range(2)]
    batches = JoinedBatches[Greedy](policy, 0, CPU, packed)
    most = 0
    for step in range(max(LENGTHS) + max(ARRIVALS)):
        new = [number for number, at in enumerate(ARRIVALS) if at == step]
        if new:
            requests = [Request(PROMPTS[number], 2, 1) for number in new]
            batches.begin(requests, [row for number in new for row in rows[2 * number :][:2]])
        most = max(most, len(batches._batches))
        batches.step(fail)
    assert not batches.rows
    return rows, most


@pytest.mark.parametrize("name", FAMILIES)
def test_rows_that_join_say_what_they_say_alone(name: str, tiny_model_dir: Path, tmp_path: Path):
    case, num_batches = FAMILIES[name]
    folder = save(case, tiny_model_dir, tmp_path / "model")
    policy = load_policy(str(folder), ModelConfig(path=str(folder))).eval()
    with policy.ready_to_decode() as packed:
        rows, most = together(policy, packed)
    for number, (prompt, length) in enumerate(zip(PROMPTS, LENGTHS, strict=True)):
        tokens, log_probs = alone(policy, prompt, length)
        for row in rows[2 * number :][:2]:
            assert row.said[0] == tokens
            assert row.said[1] == pytest.approx(log_probs, abs=1e-4)
    assert most == num_batches


@torch.no_grad()
def test_memory_does_not_grow_with_rows_that_left(tiny_model_dir: Path):
    policy = load_policy(str(tiny_model_dir), ModelConfig(path=str(tiny_model_dir))).eval()
    with policy.ready_to_decode() as packed:
        joined = JoinedRows.of(policy, [Request(list(range(5, 60)), 2, 1)], 0, CPU, packed)
        for _ in range(6):
            joined.join([JoinedRows.of(policy, [Request([7, 8], 1, 1)], 0, CPU, packed)])
            joined.step(torch.tensor([5] * len(joined)))
            joined.keep(range(1, len(joined)))
    assert isinstance(joined.read, ByPlainDecoder) and isinstance(joined.read.memory, WholeRows)
    memory = joined.read.memory
    # Two rows of the long prompt left first; of the six others four are there.
    assert len(joined) == 2
    assert memory.mask_R11L.shape[-1] == memory.layers[0].length == 2 + 2
