"""Rows that join a batch and leave it say what each says by itself, whatever the cache is like."""

from pathlib import Path

import pytest
import torch

from rl_core.kernels import Packed
from rl_core.models.causal_lm import CausalLMPolicy, load_policy
from rl_core.models.decoding.decode import decode
from rl_core.models.decoding.decoder_memory import WholeRows
from rl_core.models.decoding.joining import JoinedRows
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


@torch.no_grad()
def together(
    policy: CausalLMPolicy, packed: Packed
) -> tuple[dict[int, tuple[list[int], list[float]]], int]:
    """Greedy replies of rows that arrive and leave at different steps, and the most batches."""
    said: dict[int, Said] = {n: ([], []) for n in range(len(PROMPTS))}
    batches: list[tuple[JoinedRows, list[int]]] = []
    most = 0
    for step in range(max(LENGTHS) + max(ARRIVALS)):
        for number in (n for n, at in enumerate(ARRIVALS) if at == step):
            new = JoinedRows.of(policy, PROMPTS[number], 1, 0, CPU, packed)
            if batches and batches[0][0].can_be_joined:
                batches[0][0].join([new])
                batches[0][1].append(number)
            else:
                batches.append((new, [number]))
        most = max(most, len(batches))
        for joined, rows in batches:
            scores = policy.logits(joined.states_RH).float().log_softmax(-1)
            tokens = scores.argmax(-1)
            for place, number in enumerate(rows):
                said[number][0].append(int(tokens[place]))
                said[number][1].append(float(scores[place, tokens[place]]))
            kept = [at for at, number in enumerate(rows) if len(said[number][0]) < LENGTHS[number]]
            rows[:] = [rows[at] for at in kept]
            if rows:
                joined.keep(kept)
                joined.step(tokens[torch.tensor(kept)])
        batches = [one for one in batches if one[1]]
    return said, most


@pytest.mark.parametrize("name", FAMILIES)
def test_rows_that_join_say_what_they_say_alone(name: str, tiny_model_dir: Path, tmp_path: Path):
    case, num_batches = FAMILIES[name]
    folder = save(case, tiny_model_dir, tmp_path / "model")
    policy = load_policy(str(folder), ModelConfig(path=str(folder))).eval()
    with policy.ready_to_decode() as packed:
        said, most = together(policy, packed)
    for number, (prompt, length) in enumerate(zip(PROMPTS, LENGTHS, strict=True)):
        tokens, log_probs = alone(policy, prompt, length)
        assert said[number][0] == tokens
        assert said[number][1] == pytest.approx(log_probs, abs=1e-4)
    assert most == num_batches


@torch.no_grad()
def test_memory_does_not_grow_with_rows_that_left(tiny_model_dir: Path):
    policy = load_policy(str(tiny_model_dir), ModelConfig(path=str(tiny_model_dir))).eval()
    with policy.ready_to_decode() as packed:
        joined = JoinedRows.of(policy, list(range(5, 60)), 2, 0, CPU, packed)
        for _ in range(6):
            joined.join([JoinedRows.of(policy, [7, 8], 1, 0, CPU, packed)])
            joined.step(torch.tensor([5] * len(joined)))
            joined.keep(range(1, len(joined)))
    assert isinstance(joined.read, ByPlainDecoder) and isinstance(joined.read.memory, WholeRows)
    memory = joined.read.memory
    # Two rows of the long prompt left first; of the six others four are there.
    assert len(joined) == 2
    assert memory.mask_R11L.shape[-1] == memory.layers[0].length == 2 + 2
