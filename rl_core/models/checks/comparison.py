"""Comparison of two copies of a model by their results on a few probe inputs.

The effect of rounding is measured: the same inputs once more, with random rounding errors of the
format added to every layer's output. A larger difference means another model.

Shapes: B rows (one, here) of L tokens, T of them a reply; V words; N compared values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from rl_core.data.prepare.tokenizer import Tokenizer
from rl_core.models.checks.row_length import longest_row
from rl_core.models.decoding.router_replay import stacks_of_experts
from rl_core.models.media import PromptMedia
from rl_core.models.policy import TokenPolicy

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

LENGTHS = ((1, 12), (4, 12), (8, 10), (16, 8), (24, 8))
"""Tokens of prompt and reply of the probe rows."""
EXACT = 1e-4
"""Bound on the difference of two sums of the same float32 numbers in another order, for any
model."""
AMPLIFIED = 2**6
"""Factor on float32's own rounding, large enough to flip choices (of experts) that may go either
way."""
SAFETY = 2.0
"""Factor on the measured difference in coarse formats, which leave no room to amplify."""
NUM_DRAWS = 4
"""Draws of errors in coarse formats for a mixture of experts, of which the largest effect counts: a
token near the border between two experts is sent to the other one in some draws alone."""


@dataclass(frozen=True)
class Live:
    """Results of the trained policy itself, in its compute format."""

    said_N: Tensor
    dtype: torch.dtype


@dataclass(frozen=True)
class TokenRow:
    """A row of ordinary tokens: a prompt and a reply, without padding."""

    ids_L: Tensor
    num_reply: int
    media: PromptMedia | None = None
    """Media of its prompt besides text."""

    def said_by(self, policy: TokenPolicy, device: torch.device) -> Tensor:
        """Return the log-probabilities of the reply's tokens by a policy, [T] in float32 on the
        CPU."""
        ids_BL = self.ids_L[None].to(device)
        positions_BL = torch.arange(len(self.ids_L), device=device)[None]
        reply_BT = torch.ones(1, self.num_reply, dtype=torch.long, device=device)
        media_B = None if self.media is None else [self.media]
        with torch.no_grad():
            return (
                policy(ids_BL, torch.ones_like(ids_BL), positions_BL, reply_BT, media_B=media_B)[0][
                    0
                ]
                .float()
                .cpu()
            )

    def said_by_model(self, model: PreTrainedModel) -> Tensor:
        """Return the same by a model of transformers, from its logits for text alone."""
        with torch.no_grad():
            log_probs_LV = (
                model(input_ids=self.ids_L[None].to(model.device))
                .logits[0]
                .float()
                .log_softmax(-1)
                .cpu()
            )
        return log_probs_LV[:-1].gather(-1, self.ids_L[1:, None])[-self.num_reply :, 0]

    def after(self, media: PromptMedia, image_token: int) -> TokenRow:
        """Return the same row after an image."""
        picture = torch.full((media.num_tokens,), image_token)
        return TokenRow(torch.cat([picture, self.ids_L]), self.num_reply, media)


def token_rows(
    tokenizer: Tokenizer, config: PreTrainedConfig, *, num_choices: int | None = None
) -> list[TokenRow]:
    """Return rows of several lengths, the same for every model of a vocabulary.

    Args: config: config of the language model. num_choices: number of tokens, from the first, that
    may be sampled.
    """
    text = config.get_text_config()
    size = min(len(tokenizer), text.vocab_size, num_choices or len(tokenizer))
    special = {*tokenizer.all_special_ids, *_other_senses(config)}
    ordinary = torch.tensor([token for token in range(size) if token not in special])
    longest = max(map(sum, LENGTHS))
    limit = longest_row(text.to_dict())
    if limit is not None:
        longest = min(longest, limit.num_tokens)
    generator = torch.Generator().manual_seed(0)
    rows = []
    for prompt, reply in LENGTHS:
        length = min(prompt + reply, longest)
        ids_L = ordinary[torch.randint(len(ordinary), (length,), generator=generator)]
        rows.append(TokenRow(ids_L, min(reply, length - 1)))
    return rows


def places_in(rows: Sequence[TokenRow]) -> list[str]:
    """Describe the place of each value that rows give."""
    places: list[str] = []
    for number, row in enumerate(rows):
        for place in range(row.num_reply):
            places.append(
                f"token {place} of the reply in "
                f"{'a row with a picture' if row.media is not None else f'row {number}'}"
            )
    return places


def explained(
    said_N: Tensor, say: Callable[[], Tensor], model: nn.Module, dtype: torch.dtype
) -> float:
    """Return the allowed difference of two computations in a format.

    Args: said_N: result of `say`, which evaluates `model`.
    """
    exact = dtype is torch.float32
    unit = torch.finfo(dtype).eps / 2
    moved = 0.0
    for seed in range(1 if exact or not stacks_of_experts(model) else NUM_DRAWS):
        with _rounding(model, unit * (AMPLIFIED if exact else 1), seed):
            moved = max(moved, float((say() - said_N).abs().max()))
    return EXACT + (moved if exact else SAFETY * moved)


def difference(
    wanted_N: Tensor, found_N: Tensor, bound: float, places: list[str] | None = None
) -> str | None:
    """Describe the largest difference and its place, if it exceeds the bound; return None
    otherwise."""
    difference_N = (found_N - wanted_N).abs()
    difference_N = torch.where(torch.isfinite(difference_N), difference_N, torch.inf)
    worst = int(difference_N.argmax())
    if float(difference_N[worst]) <= bound:
        return None
    where = places[worst] if places is not None else f"value {worst}"
    return (
        f"they differ by up to {float(difference_N[worst]):.3g} (at {where}: "
        f"{float(wanted_N[worst]):.4f} against {float(found_N[worst]):.4f}), where rounding "
        f"explains {bound:.2g}"
    )


@contextmanager
def _rounding(model: nn.Module, unit: float, seed: int) -> Iterator[None]:
    """Add random errors of relative size `unit` to every layer's output during the block."""
    generators: dict[torch.device, torch.Generator] = {}

    def moved(value: object) -> object:
        if isinstance(value, tuple):
            return tuple(moved(one) for one in value)
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        generator = generators.setdefault(
            value.device, torch.Generator(value.device).manual_seed(seed)
        )
        noise = torch.randn(
            value.shape, generator=generator, device=value.device, dtype=torch.float32
        )
        return (value * (1 + unit * noise)).to(value.dtype)

    layers = []
    for module in model.modules():
        if next(module.parameters(recurse=False), None) is not None:
            layers.append(module)
    hooks = [
        layer.register_forward_hook(lambda _layer, _inputs, output: moved(output))
        for layer in layers
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _other_senses(config: PreTrainedConfig) -> list[int]:
    named = (
        getattr(config, name, None)
        for name in ("image_token_id", "video_token_id", "audio_token_id")
    )
    return [token for token in named if isinstance(token, int)]
