"""Vision-language models: what generation said a token's probability was, the training forward says
too."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from rl_core.data_proto import pad_rows
from rl_core.errors import ModelError
from rl_core.models.adapters.lora import inject_lora
from rl_core.models.causal_lm import blocks
from rl_core.models.checks.paths import Path as Way
from rl_core.models.decoding.decode import decode, positions_of
from rl_core.models.decoding.request import Reply, Request, Sampling
from rl_core.models.family import load_policy
from rl_core.models.vlm import FAMILIES, VLMPolicy
from schemas.recipe import LoraConfig, ModelConfig
from schemas.sections.policy import ModelPart
from tests.models.conftest import EOS, KINDS, PAD, made, media, prompt

CPU = torch.device("cpu")
SAMPLING = Sampling(max_new_tokens=5, temperature=1.0, eos_ids=(EOS,), pad_id=PAD)


def sample(policy: VLMPolicy, requests: list[Request]) -> list[Reply]:
    return decode(policy, requests, SAMPLING, torch.Generator().manual_seed(0), CPU)


def requests_of(kind: str, pictures: list[int]) -> list[Request]:
    """Prompts of different lengths, three siblings each, with so many pictures each."""
    return [
        Request(
            prompt(kind, count, 4 + 3 * index, index),
            3,
            100,
            media(kind, count, index) if count else None,
        )
        for index, count in enumerate(pictures)
    ]


def recomputed(
    policy: VLMPolicy, requests: list[Request], replies: list[Reply], padding: int = 0
) -> list[Tensor]:
    """Log-probabilities of the replies' tokens by the training forward, prompts padded `padding`
    further left."""
    rows = [
        (request, replies[3 * index + one])
        for index, request in enumerate(requests)
        for one in range(3)
    ]
    prompt_width = max(len(request.token_ids) for request in requests) + padding
    prompts = pad_rows(
        [torch.tensor(r.token_ids) for r, _ in rows], PAD, left=True, length=prompt_width
    )
    said = pad_rows([torch.tensor(reply.token_ids) for _, reply in rows], PAD)
    lengths = torch.tensor([len(request.token_ids) for request, _ in rows])[:, None]
    mask = pad_rows([torch.ones(len(reply.token_ids)).long() for _, reply in rows], 0)
    attention = torch.cat(
        [(torch.arange(prompt_width)[None] >= prompt_width - lengths).long(), mask], 1
    )
    log_probs, _ = policy(
        torch.cat([prompts, said], 1),
        attention,
        positions_of(attention),
        mask,
        media_B=[request.media for request, _ in rows],
    )
    return [log_probs[row, : len(reply.token_ids)] for row, (_, reply) in enumerate(rows)]


def difference(replies: list[Reply], again: list[Tensor]) -> float:
    pairs = zip(replies, again, strict=True)
    return max(float((torch.tensor(reply.log_probs) - one).abs().max()) for reply, one in pairs)


@pytest.mark.parametrize("pictures", [[1], [1, 1, 1], [2, 1], [2, 3]], ids=str)
@torch.no_grad()
def test_training_forward_gives_the_log_probabilities_of_generation(kind: str, pictures: list[int]):
    policy = VLMPolicy(made(kind))
    requests = requests_of(kind, pictures)
    replies = sample(policy, requests)
    assert difference(replies, recomputed(policy, requests, replies)) < 2e-5
    assert difference(replies, recomputed(policy, requests, replies, padding=7)) < 2e-5


@torch.no_grad()
def test_generation_is_that_of_transformers(kind: str):
    policy = VLMPolicy(made(kind))
    request = Request(prompt(kind, 1, 6, 0), 1, 100, media(kind, 1, 0))
    greedy = decode(policy, [request], Sampling(5, 0.0, (EOS,), PAD), torch.Generator(), CPU)[0]
    ids = torch.tensor([request.token_ids])
    assert request.media is not None
    shown = dict(request.media.tensors)
    if policy.family.needs_grid_positions:
        shown["mm_token_type_ids"] = (ids == policy.language_model.config.image_token_id).int()
    written = policy.language_model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=5,
        eos_token_id=EOS,
        **shown,
    )
    assert greedy.token_ids == written[0, ids.shape[1] :].tolist()


@torch.no_grad()
def test_other_pictures_give_other_replies(kind: str):
    policy = VLMPolicy(made(kind))
    request = Request(prompt(kind, 1, 6, 0), 3, 100, media(kind, 1, 0))
    other = Request(request.token_ids, 3, 100, media(kind, 1, 1))
    replies = sample(policy, [request])
    assert difference(replies, recomputed(policy, [other], replies)) > 2e-4


def test_siblings_are_encoded_once_and_the_gradient_is_that_of_each_by_itself(kind: str):
    policy = VLMPolicy(made(kind))
    requests = requests_of(kind, [1, 2])
    replies = sample(policy, requests)
    model, seen = policy.language_model.model, []
    encode = model.get_image_features

    def counting(**tensors):
        seen.append(sum(len(value) for name, value in tensors.items() if name == "pixel_values"))
        return encode(**tensors)

    model.get_image_features = counting
    torch.cat(recomputed(policy, requests, replies)).sum().backward()
    one_pass = {
        name: value.grad.clone()
        for name, value in policy.named_parameters()
        if value.grad is not None
    }
    assert len(seen) == 1
    policy.zero_grad()
    for index, request in enumerate(requests):
        torch.cat(
            recomputed(policy, [request], replies[3 * index : 3 * index + 3])
        ).sum().backward()
    assert sum(seen[1:]) == seen[0]
    for name, value in policy.named_parameters():
        if name in one_pass:
            torch.testing.assert_close(value.grad, one_pass[name], rtol=1e-3, atol=1e-5)
    tower = [
        name
        for name in one_pass
        if any(f"model.{path}" in name for path in policy.family.vision_tower)
    ]
    assert tower, "the vision tower learns"


def test_rows_without_pictures_can_stand_among_rows_with_some(kind: str):
    policy = VLMPolicy(made(kind))
    requests = requests_of(kind, [1, 0])
    with torch.no_grad():
        replies = sample(policy, requests)
        assert difference(replies, recomputed(policy, requests, replies)) < 2e-5


def test_a_pass_without_pictures_still_runs_the_encoder_and_learns_nothing_from_it(kind: str):
    policy = VLMPolicy(made(kind), blank=media(kind, 1, 5))
    bare = VLMPolicy(made(kind))
    requests = requests_of(kind, [0])
    replies = sample(bare, requests)
    log_probs = recomputed(policy, requests, replies)
    assert difference(replies, [one.detach() for one in log_probs]) < 1e-4
    torch.cat(log_probs).sum().backward()
    tower = [
        value.grad
        for module in policy.part(ModelPart.VISION_TOWER)
        for value in module.parameters()
    ]
    touched = [gradient for gradient in tower if gradient is not None]
    assert touched and all(not gradient.any() for gradient in touched)


def test_a_frozen_part_takes_no_gradient_and_no_adapter(kind: str):
    policy = VLMPolicy(made(kind), [ModelPart.VISION_TOWER, ModelPart.PROJECTOR])
    trained = {name for name, value in policy.named_parameters() if value.requires_grad}
    assert trained and not any(
        path in name for path in ("vision", "visual", "connector", "projector") for name in trained
    )
    inject_lora(policy, LoraConfig(rank=2), seed=0)
    adapters = {name for name, value in policy.named_parameters() if value.requires_grad}
    assert adapters and all("lora" in name for name in adapters)
    assert not any(
        path in name for path in ("vision", "visual", "connector", "projector") for name in adapters
    )
    wide = VLMPolicy(made(kind), [])
    inject_lora(wide, LoraConfig(rank=2), seed=0)
    assert any(
        "vision" in n or "visual" in n
        for n, value in wide.named_parameters()
        if value.requires_grad
    )


def test_every_repeated_block_of_tower_and_language_model_is_wrapped(kind: str):
    policy = VLMPolicy(made(kind))
    found = {type(block).__name__ for block in blocks(policy)}
    assert found == set(FAMILIES[kind].blocks)
    assert len(blocks(policy)) == 4
    assert all(policy.part(part) for part in ModelPart)


def test_a_saved_model_loads_as_the_same_policy(kind: str, tmp_path: Path):
    policy = VLMPolicy(made(kind))
    policy.language_model.save_pretrained(tmp_path)
    loaded = load_policy(str(tmp_path), ModelConfig(path=str(tmp_path))).eval()
    assert isinstance(loaded, VLMPolicy) and loaded.frozen == (ModelPart.VISION_TOWER,)
    # What the class never does is no finding about the model at hand.
    assert loaded.paths is not None and Way.PACKED in loaded.paths.closed
    assert not loaded.paths.refused
    with pytest.raises(ModelError, match=r"cannot be packed .*unset it"):
        loaded.enable_packing()
    requests = requests_of(kind, [1])
    with torch.no_grad():
        replies = sample(policy, requests)
        assert difference(replies, recomputed(loaded, requests, replies)) < 1e-5


def test_every_family_has_a_tiny_model():
    assert set(KINDS) == set(FAMILIES)
