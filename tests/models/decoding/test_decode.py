"""Decoding says exactly what the policy says: the same log-probabilities, the same greedy tokens,
row by row."""

from pathlib import Path

import pytest
import torch

from rl_core.data_proto import pad_rows
from rl_core.models.causal_lm import CausalLMPolicy, load_policy
from rl_core.models.chat.tokenizer import load_tokenizer
from rl_core.models.decoding.decode import decode, positions_of
from rl_core.models.decoding.pick import pick
from rl_core.models.decoding.request import Reply, Request, Sampling, StopReason
from schemas.recipe import ModelConfig

CPU = torch.device("cpu")
TEXTS = ["2+2=", "What is 17 * 3? Think about it.", "Hi"]
PAD = 0
ENDS = tuple(range(3, 13))
"""Ends of replies that are drawn often, for replies of several lengths."""


@pytest.fixture(scope="module")
def policy(tiny_model_dir: Path) -> CausalLMPolicy:
    """The tiny model with its weights enlarged, so that its distribution is far from uniform."""
    loaded = load_policy(str(tiny_model_dir), ModelConfig(path=str(tiny_model_dir))).eval()
    with torch.no_grad():
        for parameter in loaded.parameters():
            if parameter.dim() == 2:
                parameter.mul_(8)
    assert next(loaded.parameters()).dtype == torch.float32
    return loaded


@pytest.fixture(scope="module")
def prompts(tiny_model_dir: Path) -> list[list[int]]:
    """Ragged prompts."""
    tokenizer = load_tokenizer(str(tiny_model_dir))
    assert tokenizer.pad_token_id == PAD
    encoded = [tokenizer.encode(text) for text in TEXTS]
    assert len({len(one) for one in encoded}) == len(TEXTS)
    return encoded


def play(
    policy: CausalLMPolicy,
    prompts: list[list[int]],
    *,
    siblings: int = 1,
    temperature: float = 0.0,
    eos_ids: tuple[int, ...] = (3,),
    max_new_tokens: int = 12,
    seed: int = 0,
) -> list[Reply]:
    sampling = Sampling(max_new_tokens, temperature, eos_ids, PAD)
    requests = [Request(prompt, siblings, max_new_tokens) for prompt in prompts]
    return decode(policy, requests, sampling, torch.Generator().manual_seed(seed), CPU)


def forward_log_probs(
    policy: CausalLMPolicy, prompts: list[list[int]], replies: list[Reply], temperature: float
) -> list[list[float]]:
    """What the training forward pass gives for the same tokens, padded as the trainer pads them."""
    prompt_ids = pad_rows([torch.tensor(one) for one in prompts], PAD, left=True)
    prompt_mask = pad_rows([torch.ones(len(one)).long() for one in prompts], 0, left=True)
    reply_ids = pad_rows([torch.tensor(reply.token_ids) for reply in replies], PAD)
    reply_mask = pad_rows([torch.ones(len(reply.token_ids)).long() for reply in replies], 0)
    attention = torch.cat([prompt_mask, reply_mask], 1)
    with torch.no_grad():
        log_probs, _ = policy(
            torch.cat([prompt_ids, reply_ids], 1),
            attention,
            positions_of(attention),
            reply_mask,
            temperature=temperature,
        )
    return [
        row[: len(reply.token_ids)].tolist() for row, reply in zip(log_probs, replies, strict=True)
    ]


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_sampled_log_probs_are_those_of_the_training_forward(policy, prompts, temperature: float):
    # Many end-of-sequence ids make siblings finish at different steps, so rows leave the batch on
    # the way.
    replies = play(
        policy, prompts, siblings=4, temperature=temperature, eos_ids=tuple(range(3, 13))
    )
    assert len({len(reply.token_ids) for reply in replies}) > 2
    contexts = [prompt for prompt in prompts for _ in range(4)]
    expected = forward_log_probs(policy, contexts, replies, temperature)
    for reply, row in zip(replies, expected, strict=True):
        assert reply.log_probs == pytest.approx(row, abs=1e-5)
    seen = [value for row in expected for value in row]
    assert max(seen) - min(seen) > 2, "all tokens were about equally likely"


def test_greedy_log_probs_are_those_of_temperature_one(policy, prompts):
    replies = play(policy, prompts)
    for reply, row in zip(replies, forward_log_probs(policy, prompts, replies, 1.0), strict=True):
        assert reply.log_probs == pytest.approx(row, abs=1e-5)


def test_greedy_equals_transformers_generate(policy, prompts):
    replies = play(policy, prompts, max_new_tokens=20)
    for prompt, reply in zip(prompts, replies, strict=True):
        generated = policy.language_model.generate(
            input_ids=torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt)).long(),
            do_sample=False,
            max_new_tokens=20,
            eos_token_id=3,
            pad_token_id=PAD,
        )
        assert reply.token_ids == generated[0, len(prompt) :].tolist()
    assert len({tuple(reply.token_ids) for reply in replies}) == len(prompts), (
        "the prompt made no difference"
    )


def test_finished_rows_leave_without_changing_the_others(policy, prompts):
    # The token one row writes third ends that row early, and none of the others as early.
    free = play(policy, prompts, eos_ids=(-1,))
    early = free[0].token_ids[2]
    together = play(policy, prompts, eos_ids=(early,))
    alone = [play(policy, [prompt], eos_ids=(early,))[0] for prompt in prompts]
    assert len({len(reply.token_ids) for reply in together}) > 1, "no row finished before another"
    for one, other in zip(together, alone, strict=True):
        assert (one.token_ids, one.stop_reason) == (other.token_ids, other.stop_reason)
        assert one.log_probs == pytest.approx(other.log_probs, abs=1e-5)


def test_siblings_are_adjacent_and_continue_their_own_prompt(policy, prompts):
    replies = play(policy, prompts, siblings=3)
    single = play(policy, prompts)
    assert [reply.token_ids for reply in replies] == [
        reply.token_ids for reply in single for _ in range(3)
    ]


def test_the_same_generator_seed_repeats_exactly(policy, prompts):
    options = {"siblings": 2, "temperature": 1.0}
    first = play(policy, prompts, seed=7, **options)
    assert play(policy, prompts, seed=7, **options) == first
    assert play(policy, prompts, seed=8, **options) != first
    assert first[0].token_ids != first[1].token_ids, "siblings drew the same tokens"


def test_a_reply_ends_with_its_first_end_token_or_at_the_limit(policy, prompts):
    eos_ids = tuple(range(3, 33))
    replies = play(policy, prompts, siblings=8, temperature=1.0, eos_ids=eos_ids, max_new_tokens=4)
    for reply in replies:
        ended = reply.token_ids[-1] in eos_ids
        assert reply.stop_reason == (StopReason.EOS if ended else StopReason.LENGTH)
        assert ended or len(reply.token_ids) == 4
        assert not set(reply.token_ids[:-1]) & set(eos_ids), "the reply went on after its end"
        assert len(reply.log_probs) == len(reply.token_ids)
    assert {reply.stop_reason for reply in replies} == {StopReason.EOS, StopReason.LENGTH}


def test_an_end_token_at_the_very_limit_is_an_end(policy, prompts):
    first = play(policy, prompts[:1], eos_ids=(-1,), max_new_tokens=1)[0].token_ids[0]
    reply = play(policy, prompts[:1], eos_ids=(first,), max_new_tokens=1)[0]
    assert (reply.token_ids, reply.stop_reason) == ([first], StopReason.EOS)


def test_positions_start_at_the_first_real_token():
    attention = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 0]])
    assert positions_of(attention).tolist() == [[0, 0, 0, 1, 2], [0, 1, 2, 3, 3]]


def test_requests_of_their_own_counts_and_room_get_what_they_ask_for(policy, prompts):
    counts, room = (3, 1, 2), (2, 5, 9)
    requests = [
        Request(prompt, *of)
        for prompt, of in zip(prompts, zip(counts, room, strict=True), strict=True)
    ]
    sampling = Sampling(max_new_tokens=7, temperature=0.0, eos_ids=(3,), pad_id=PAD)
    replies = decode(policy, requests, sampling, torch.Generator(), CPU)
    alone = play(policy, prompts, max_new_tokens=7)
    expected = [
        (row, limit)
        for row, (n, limit) in enumerate(zip(counts, room, strict=True))
        for _ in range(n)
    ]
    assert len(replies) == len(expected)
    for reply, (row, limit) in zip(replies, expected, strict=True):
        assert reply.token_ids == alone[row].token_ids[: min(limit, 7)]
        assert reply.stop_reason is (
            StopReason.EOS if reply.token_ids[-1] == 3 else StopReason.LENGTH
        )


@pytest.mark.parametrize("num_words", [7, 256, 1000])
def test_tokens_are_drawn_in_proportion_to_their_weights(num_words: int):
    generator = torch.Generator().manual_seed(0)
    # Most of the weight lies on a few words, some words have none.
    weights = torch.rand(num_words, generator=generator) ** 8
    weights[::3] = 0
    num_draws = 40_000
    random = torch.rand(num_draws, 1, generator=generator, dtype=torch.float64)
    drawn = pick(weights.expand(num_draws, -1), random)
    counts = torch.bincount(drawn, minlength=num_words).double()
    assert counts[weights == 0].sum() == 0
    expected = num_draws * weights.double() / weights.double().sum()
    common = expected > 5
    chi_square = ((counts - expected)[common] ** 2 / expected[common]).sum()
    freedom = int(common.sum())
    assert chi_square < freedom + 5 * (2 * freedom) ** 0.5


def test_a_word_is_drawn_wherever_the_random_number_falls():
    weights = torch.zeros(2, 600)
    weights[:, 300], weights[:, 301] = 1.0, 3.0
    for share, word in ((0.0, 300), (0.2499, 300), (0.2501, 301), (1.0, 301)):
        random = torch.full((2, 1), share, dtype=torch.float64)
        assert pick(weights, random).tolist() == [word, word]


def test_when_enough_groups_have_ended_the_others_are_given_up_where_they_are(
    policy: CausalLMPolicy, prompts: list[list[int]]
) -> None:
    whole = play(policy, prompts, siblings=3, temperature=1.0, eos_ids=ENDS, max_new_tokens=40)
    lengths = [max(len(one.token_ids) for one in whole[at : at + 3]) for at in (0, 3, 6)]
    assert len(set(lengths)) == 3, "one ends before the others"
    first, last = lengths.index(min(lengths)), min(lengths)
    sampling = Sampling(40, 1.0, ENDS, PAD)
    requests = [Request(prompt, 3, 40, group=number) for number, prompt in enumerate(prompts)]
    generator = torch.Generator().manual_seed(0)
    some = decode(policy, requests, sampling, generator, CPU, enough=1)
    for number, (found, wanted) in enumerate(zip(some, whole, strict=True)):
        # The same tokens, as far as they were sampled.
        assert found.token_ids == wanted.token_ids[:last]
        if number // 3 == first:
            assert found.stop_reason is wanted.stop_reason
    others = [one for number, one in enumerate(some) if number // 3 != first]
    assert StopReason.GIVEN_UP in {one.stop_reason for one in others}


def test_requests_of_one_group_end_together(
    policy: CausalLMPolicy, prompts: list[list[int]]
) -> None:
    sampling = Sampling(40, 1.0, ENDS, PAD)
    requests = [Request(prompt, 3, 40, group=0) for prompt in prompts]
    generator = torch.Generator().manual_seed(0)
    one_group = decode(policy, requests, sampling, generator, CPU, enough=1)
    whole = play(policy, prompts, siblings=3, temperature=1.0, eos_ids=ENDS, max_new_tokens=40)
    assert [one.token_ids for one in one_group] == [one.token_ids for one in whole]
