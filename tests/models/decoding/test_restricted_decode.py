"""Decoding from a part of the distribution: transformers' own distribution, and log-probabilities
that the training forward gives, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from rl_core.data_proto import pad_rows
from rl_core.models.causal_lm import CausalLMPolicy, load_policy
from rl_core.models.chat.tokenizer import load_tokenizer
from rl_core.models.decoding import restriction
from rl_core.models.decoding.decode import decode, positions_of
from rl_core.models.decoding.request import Reply, Request, Sampling, StopReason
from rl_core.models.decoding.restriction import Restriction
from rl_core.models.decoding.stop_strings import StopStrings
from schemas.recipe import ModelConfig
from schemas.sections.sampling import SamplingConfig

CPU, PAD, EOS = torch.device("cpu"), 0, 3
PROMPTS = [[5, 9, 30, 31, 8], [7] * 9, list(range(20, 41))]
CHOICES: list[dict[str, Any]] = [
    {"top_k": 4},
    {"top_p": 0.8},
    {"min_p": 0.1},
    {"top_k": 12, "top_p": 0.9, "repetition_penalty": 1.4},
    {"repetition_penalty": 0.7},
    {"min_new_tokens": 6},
    {"top_p": 0.7, "repetition_penalty": 1.2, "min_new_tokens": 3},
]


@pytest.fixture(scope="module")
def policy(tiny_model_dir: Path) -> CausalLMPolicy:
    """The tiny model with its weights enlarged, so that its distribution is far from uniform."""
    loaded = load_policy(str(tiny_model_dir), ModelConfig(path=str(tiny_model_dir))).eval()
    with torch.no_grad():
        for parameter in loaded.parameters():
            if parameter.dim() == 2:
                parameter.mul_(5)
    return loaded


def play(
    policy: CausalLMPolicy, changes: dict[str, Any], temperature: float, siblings: int = 3
) -> list[Reply]:
    choice = SamplingConfig.model_validate(changes)
    sampling = Sampling(
        10, temperature, (EOS,), PAD, choice=choice, records_support=bool(choice.leaves_out)
    )
    requests = [Request(prompt, siblings, 10) for prompt in PROMPTS]
    return decode(policy, requests, sampling, torch.Generator().manual_seed(0), CPU)


def forward(
    policy: CausalLMPolicy, replies: list[Reply], changes: dict[str, Any], **options: Any
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Log-probabilities, entropies and mask of the training forward, padded as it pads."""
    prompts = [prompt for prompt in PROMPTS for _ in range(len(replies) // len(PROMPTS))]
    tokens = [reply.token_ids for reply in replies]
    left = pad_rows([torch.tensor(one) for one in prompts], PAD, left=True)
    right = pad_rows([torch.tensor(one) for one in tokens], PAD)
    used = torch.cat(
        [
            pad_rows([torch.ones(len(one)).long() for one in prompts], 0, left=True),
            mask := pad_rows([torch.ones(len(one)).long() for one in tokens], 0),
        ],
        1,
    )
    supports = [reply.support for reply in replies if reply.support is not None]
    drawn = Restriction(changes.get("repetition_penalty", 1.0), supports or None)
    found = policy(
        torch.cat([left, right], 1),
        used,
        positions_of(used),
        mask,
        restriction=drawn,
        **options,
    )
    return *found, mask


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("changes", CHOICES, ids=str)
def test_training_has_the_log_probabilities_that_were_sampled(
    policy: CausalLMPolicy, changes: dict[str, Any], temperature: float
):
    replies = play(policy, changes, temperature)
    with torch.no_grad():
        log_probs_BT, _, mask_BT = forward(policy, replies, changes, temperature=temperature)
    sampled_BT = pad_rows([torch.tensor(reply.log_probs) for reply in replies], 0.0)
    assert float((log_probs_BT - sampled_BT).abs().max()) < 1e-4
    # The whole distribution gives something else, so the restriction is what makes them equal.
    with torch.no_grad():
        plain_BT, _, _ = forward(
            policy, [Reply(one.token_ids, [], one.stop_reason) for one in replies], {}
        )
    assert float(((plain_BT - sampled_BT) * mask_BT).abs().max()) > 1e-2


@pytest.mark.parametrize("changes", CHOICES, ids=str)
def test_replies_have_the_distribution_of_transformers(
    policy: CausalLMPolicy, changes: dict[str, Any]
):
    """Each token is drawn from the scores that `generate` gives for the same context."""
    for reply, prompt in zip(play(policy, changes, 0.9, siblings=1), PROMPTS, strict=True):
        scores = expected_scores(policy, prompt, reply.token_ids, changes, 0.9)
        assert reply.support is not None or not SamplingConfig.model_validate(changes).leaves_out
        ends = 0
        for step, (token, log_prob) in enumerate(
            zip(reply.token_ids, reply.log_probs, strict=True)
        ):
            assert float(scores[step].log_softmax(-1)[token]) == pytest.approx(log_prob, abs=1e-4)
            if reply.support is None:
                continue
            size = int(reply.support.sizes_T[step])
            ids = reply.support.ids[ends : (ends := ends + (size if size >= 0 else -1 - size))]
            allowed = set((scores[step] > float("-inf")).nonzero()[:, 0].tolist())
            everything = set(range(scores.shape[-1]))
            assert allowed == (set(ids.tolist()) if size >= 0 else everything - set(ids.tolist()))


def expected_scores(
    policy: CausalLMPolicy,
    prompt: list[int],
    reply: list[int],
    changes: dict[str, Any],
    temperature: float,
) -> torch.Tensor:
    """Processed scores of `generate` at each position of a reply that is forced on it, [T, V]."""

    class Forced(LogitsProcessor):
        """Keeps the scores, then leaves only the reply's own token."""

        def __init__(self) -> None:
            self.seen: list[torch.Tensor] = []

        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            processed = scores
            for one in processors(policy, len(prompt), changes, temperature):
                processed = one(input_ids, processed)
            self.seen.append(processed[0])
            only = torch.full_like(scores, float("-inf"))
            only[0, reply[len(self.seen) - 1]] = 0.0
            return only

    keep, model = Forced(), cast(Any, policy.language_model)
    model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        logits_processor=LogitsProcessorList([keep]),
        max_new_tokens=len(reply),
        do_sample=False,
        eos_token_id=None,
        pad_token_id=PAD,
    )
    return torch.stack(keep.seen)


def processors(
    policy: CausalLMPolicy, num_prompt: int, changes: dict[str, Any], temperature: float
) -> Any:
    """transformers' processors of these settings, as its own `generate` puts them in order."""
    names = ("top_k", "top_p", "min_p", "repetition_penalty", "min_new_tokens")
    given = {name: changes[name] for name in names if name in changes}
    config = GenerationConfig(
        do_sample=True,
        temperature=temperature,
        eos_token_id=EOS,
        pad_token_id=PAD,
        max_new_tokens=10,
        **({"top_k": 0} | given),
    )
    config._eos_token_tensor = torch.tensor([EOS])
    model = cast(Any, policy.language_model)
    return model._get_logits_processor(config, input_ids_seq_length=num_prompt, device="cpu")


def test_greedy_replies_stay_greedy(policy: CausalLMPolicy):
    plain = play(policy, {}, 0.0, siblings=1)
    for changes in ({"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.2}):
        cut = play(policy, changes, 0.0, siblings=1)
        assert [one.token_ids for one in cut] == [one.token_ids for one in plain]
    penalised = play(policy, {"repetition_penalty": 5.0}, 0.0, siblings=1)
    assert [one.token_ids for one in penalised] != [one.token_ids for one in plain]


def test_no_reply_ends_before_its_least_number_of_tokens(policy: CausalLMPolicy):
    ends = tuple(range(0, 200, 2))
    choice = SamplingConfig(min_new_tokens=4)
    sampling = Sampling(8, 1.0, ends, PAD, choice=choice, records_support=True)
    replies = decode(policy, [Request(PROMPTS[0], 64, 8)], sampling, torch.Generator(), CPU)
    lengths = {len(reply.token_ids) for reply in replies}
    assert min(lengths) == 5, "the token after the least number may end a reply"
    for reply in replies:
        assert not set(reply.token_ids[:4]) & set(ends)
        assert (reply.stop_reason is StopReason.EOS) == (reply.token_ids[-1] in ends)


def test_the_gradient_is_that_of_the_kept_tokens_alone(policy: CausalLMPolicy):
    changes = {"top_k": 4, "repetition_penalty": 1.3}
    replies = play(policy, changes, 1.0)
    head = cast(Any, policy.language_model.get_input_embeddings()).weight
    grads = []
    for chunk in (256, 4):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(restriction, "CHUNK", chunk)
            log_probs_BT, entropy_BT, _ = forward(
                policy, replies, changes, with_entropy=True, entropy_grad=True
            )
        assert entropy_BT is not None and bool(torch.isfinite(entropy_BT).all())
        assert float(entropy_BT.detach().max()) <= torch.tensor(4.0).log() + 1e-5
        (grad,) = torch.autograd.grad(log_probs_BT.sum() + 0.1 * entropy_BT.sum(), head)
        assert bool(torch.isfinite(grad).all())
        grads.append(grad)
    torch.testing.assert_close(grads[0], grads[1])


def test_a_stop_string_ends_one_reply_and_stays_in_it(policy: CausalLMPolicy, tiny_model_dir: Path):
    tokenizer = load_tokenizer(str(tiny_model_dir))

    def text_of(token_ids: list[int], tags: Any) -> str:
        return str(tokenizer.decode(token_ids))

    def said(stop: StopStrings | None) -> list[Reply]:
        asked = [Request(PROMPTS[0], 6, 20, stop=stop)]
        sampling = Sampling(20, 1.0, (), PAD)
        generator = torch.Generator().manual_seed(1)
        return decode(policy, asked, sampling, generator, CPU, text_of=text_of)

    whole = said(None)
    text = text_of(whole[0].token_ids, ())
    stop = StopStrings.of([text[len(text) // 2 :][:2]])
    assert stop is not None
    first = said(stop)[0]
    assert first.stop_reason is StopReason.STOP
    assert stop.strings[0] in text_of(first.token_ids, ())
    assert stop.strings[0] not in text_of(first.token_ids[:-1], ())
    assert first.token_ids == whole[0].token_ids[: len(first.token_ids)]
    assert first.log_probs == whole[0].log_probs[: len(first.token_ids)]
