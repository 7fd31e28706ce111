"""GLM-Image does with its pipeline what the pipeline and its model do themselves; on a tiny one of
the real classes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from rl_core.errors import ModelError
from rl_core.models.decoding.decode import decode, positions_of
from rl_core.models.decoding.request import Reply, Request, Sampling, StopReason
from rl_core.models.diffusion.base import Size
from rl_core.models.unified.base import ROWS
from rl_core.models.unified.families import unified_class, unified_classes
from rl_core.models.unified.glm_image import GlmImage
from rl_core.models.unified.glm_transformer import CODES, DROPPED
from rl_core.models.unified.policy import UnifiedPolicy
from rl_core.sde import euler_step, sigmas
from tests.models.tiny_families import made
from tests.models.tiny_glm_image import END_ID, NUM_CODES, NUM_VISION, START_ID, glm_image

SIZE = Size(64, 96)
NUM_TOKENS = 13 * 19 + 2 * 3
"""Of a plan: a small picture in about the shape of the large one, and this itself."""
PROMPTS = ["a photo of 'seven' drawn by hand", "red"]
NUM_STEPS = 4
CPU = torch.device("cpu")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Tensors this small only wait for a second one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def family() -> GlmImage:
    return GlmImage(made(glm_image))


@pytest.fixture(scope="module")
def policy(family: GlmImage) -> UnifiedPolicy:
    return UnifiedPolicy(family, size=SIZE).eval()


def asked(family: GlmImage, prompt: str) -> list[int]:
    return family.question(None, [{"role": "user", "content": prompt}], SIZE, {})


def written(policy: UnifiedPolicy, family: GlmImage, temperature: float) -> list[Reply]:
    """Two plans of each prompt; prompts have different lengths."""
    requests = [Request(asked(family, prompt), 2, 10_000) for prompt in PROMPTS]
    sampling = Sampling(NUM_TOKENS, temperature, (END_ID,), 0, StopReason.EOS)
    return decode(policy, requests, sampling, torch.Generator().manual_seed(0), CPU)


def chosen(logits: Tensor) -> Tensor:
    """Log-probabilities of codes alone."""
    return logits[..., :NUM_CODES].float().log_softmax(-1)


def test_prompts_are_asked_as_the_pipeline_does(family: GlmImage, monkeypatch: pytest.MonkeyPatch):
    seen: list[Tensor] = []

    def hold(**inputs: Any) -> Tensor:
        seen.append(inputs["input_ids"])
        return torch.cat([inputs["input_ids"], torch.zeros(1, NUM_TOKENS + 1, dtype=torch.long)], 1)

    monkeypatch.setattr(family.pipeline.vision_language_encoder, "generate", hold)
    for prompt in PROMPTS:
        family.pipeline.generate_prior_tokens(prompt, SIZE.height, SIZE.width)
    assert [ids[0].tolist() for ids in seen] == [asked(family, prompt) for prompt in PROMPTS]
    assert all(ids[0, -1] == START_ID for ids in seen)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_replay_gives_the_log_probabilities_of_the_rollout(
    policy: UnifiedPolicy, family: GlmImage, temperature: float
):
    replies = written(policy, family, temperature)
    assert [len(reply.token_ids) for reply in replies] == [NUM_TOKENS] * 4
    assert {reply.stop_reason for reply in replies} == {StopReason.EOS}
    assert max(max(reply.token_ids) for reply in replies) < NUM_CODES
    prompts = [asked(family, prompt) for prompt in PROMPTS for _ in range(2)]
    width = max(map(len, prompts))
    ids_BL = torch.tensor(
        [[0] * (width - len(p)) + p + r.token_ids for p, r in zip(prompts, replies, strict=True)]
    )
    attention_BL = torch.tensor(
        [[0] * (width - len(p)) + [1] * (len(p) + NUM_TOKENS) for p in prompts]
    )
    mask_BT = torch.ones(4, NUM_TOKENS)
    with torch.no_grad():
        scored, _ = policy(
            ids_BL, attention_BL, positions_of(attention_BL), mask_BT, temperature=temperature
        )
    stored = torch.tensor([reply.log_probs for reply in replies])
    torch.testing.assert_close(scored, stored, atol=1e-5, rtol=0)
    assert stored.std() > 0.3, "a head this flat would hide wrong positions"


@torch.no_grad()
def test_plans_are_those_of_the_model_s_own_generation(policy: UnifiedPolicy, family: GlmImage):
    greedy = written(policy, family, 0.0)
    for row, prompt in enumerate(PROMPTS):
        inputs = family._asked([{"role": "user", "content": prompt}], SIZE, {})
        found = family.pipeline.vision_language_encoder.generate(
            **inputs,
            max_new_tokens=NUM_TOKENS,
            do_sample=False,
            suppress_tokens=list(range(NUM_CODES, NUM_VISION)),
            return_dict_in_generate=True,
            output_logits=True,
        )
        ours = torch.tensor(greedy[2 * row].token_ids)
        assert torch.equal(found.sequences[0, -NUM_TOKENS:], ours)
        theirs = chosen(torch.cat(found.logits)).gather(-1, ours[:, None])[:, 0]
        torch.testing.assert_close(
            torch.tensor(greedy[2 * row].log_probs), theirs, atol=1e-5, rtol=0
        )


def test_siblings_do_not_share_a_pass_that_counts_their_tokens(policy: UnifiedPolicy):
    assert policy.enable_prompt_sharing() is False


def test_counted_positions_would_be_found_out(policy: UnifiedPolicy, family: GlmImage):
    (reply, *_), prompt = written(policy, family, 1.0), asked(family, PROMPTS[0])
    ids = torch.tensor([prompt + reply.token_ids])
    with torch.no_grad():
        states = family.transformer.writer.model(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            position_ids=torch.arange(ids.shape[1])[None],
        ).last_hidden_state[0, len(prompt) - 1 : -1]
        wrong = chosen(family.transformer.writer.lm_head(states)).gather(
            -1, ids[0, len(prompt) :, None]
        )[:, 0]
    assert (wrong - torch.tensor(reply.log_probs)).abs().max() > 0.05


def conditions(policy: UnifiedPolicy, family: GlmImage) -> list[Any]:
    """Of a plan of each prompt."""
    replies = written(policy, family, 1.0)[::2]
    contexts = [
        asked(family, prompt) + reply.token_ids
        for prompt, reply in zip(PROMPTS, replies, strict=True)
    ]
    return family.plan_conditions(PROMPTS, contexts, SIZE)


def noise() -> Tensor:
    return torch.randn(len(PROMPTS), 4, 8, 12, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_loop_of_steps_equals_the_pipeline(policy: UnifiedPolicy, family: GlmImage, scale: float):
    told, latents = conditions(policy, family), noise()
    halves = [*family.encode([""] * 2, [None] * 2, SIZE), *told] if scale > 1 else told
    batch = {**family.batch(halves), ROWS: torch.arange(len(halves))}
    for sigma, sigma_next in pairwise(sigmas(NUM_STEPS, family.shift(SIZE)).tolist()):
        both = torch.cat([latents] * (len(halves) // 2))
        found = family.velocity(family.transformer, both, torch.full((len(both),), sigma), batch)
        found = family.guide(*reversed(found.chunk(2)), scale) if scale > 1 else found
        latents = euler_step(latents, found, sigma, sigma_next).sample
    pictures = family.decode(latents)
    assert pictures.shape == (2, 3, SIZE.height, SIZE.width)
    for row, prompt in enumerate(PROMPTS):
        held: list[Tensor] = []

        def hold(
            _pipeline: Any,
            _step: int,
            _time: Any,
            values: dict[str, Any],
            held: list[Tensor] = held,
        ) -> Any:
            held.append(values["latents"])
            return values

        codes = told[row].tensors[CODES][None]
        made = family.pipeline(
            prompt=prompt,
            height=SIZE.height,
            width=SIZE.width,
            num_inference_steps=NUM_STEPS,
            guidance_scale=scale,
            prior_token_ids=codes,
            latents=noise()[row : row + 1],
            callback_on_step_end=hold,
            output_type="pt",
        ).images
        torch.testing.assert_close(latents[row : row + 1], held[-1], atol=1e-4, rtol=0)
        torch.testing.assert_close(pictures[row : row + 1], made, atol=1e-4, rtol=0)


@torch.no_grad()
def test_plan_and_quoted_text_change_what_is_drawn_and_nobody_else_does(
    policy: UnifiedPolicy, family: GlmImage
):
    told = conditions(policy, family)
    assert not any(one.tensors[DROPPED].any() for one in told)

    def velocity(*rows: Any) -> Tensor:
        batch = {**family.batch(rows), ROWS: torch.arange(len(rows))}
        return family.velocity(
            family.transformer, noise()[: len(rows)], torch.full((len(rows),), 0.6), batch
        )

    together = velocity(*told)
    torch.testing.assert_close(together[:1], velocity(told[0]), atol=1e-5, rtol=0)
    own = told[0].tensors
    other_plan = type(told[0])({**own, CODES: told[1].tensors[CODES]})
    other_text = type(told[0])({**own, "prompt_embeds": told[1].tensors["prompt_embeds"]})
    for other in other_plan, other_text:
        assert (velocity(other) - together[:1]).abs().max() > 5e-4


def test_a_plan_that_was_cut_off_is_not_drawn(family: GlmImage):
    (reason,) = family.plan_conditions(["red"], [[*asked(family, "red"), 1, 2, 3]], SIZE)
    assert reason == f"the plan has 3 of {NUM_TOKENS} tokens; raise rollout.max_context_length"


def test_sizes_it_cannot_plan_are_refused(family: GlmImage):
    with pytest.raises(ModelError, match="height 80 is not a multiple of 32 pixels; use 64 or 96"):
        UnifiedPolicy(family, size=Size(80, 96))


def test_every_family_is_found_by_its_class():
    assert [cls.name for cls in unified_classes()] == [
        "compact_unified",
        "glm_image",
        "hunyuan_image3",
    ]
    assert unified_class("GlmImagePipeline") is GlmImage
    with pytest.raises(ModelError, match=r"GlmImagePipelin are not supported \(did you mean"):
        unified_class("GlmImagePipelin")
