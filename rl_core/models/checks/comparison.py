"""Whether two copies of a model say the same: what each says of a few fixed inputs, compared.

What rounding explains is measured, not guessed: the same inputs once more, with what every layer gives moved by random
rounding errors of the format. What is further away than that is another model.

Shapes: B rows (one, here) of L tokens, T of them a reply; V words; N values that were said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rl_core.models.checks.row_length import longest_row
from rl_core.models.media import PromptMedia

LENGTHS = ((1, 12), (4, 12), (8, 10), (16, 8), (24, 8))
"""Tokens of prompt and reply of the rows that are asked about."""
EXACT = 1e-4
"""Two sums of the same float32 numbers in another order differ by less, whatever the model."""
AMPLIFIED = 2**6
"""How much more than float32's own rounding is tried, so that a choice (of experts) which may fall either way does."""
SAFETY = 2.0
"""In coarse formats, which leave no room to amplify: how much more than was measured is allowed."""


@dataclass(frozen=True)
class Live:
    """What the trained policy itself says, in the format it computes in."""

    said_N: Tensor
    dtype: torch.dtype


@dataclass(frozen=True)
class TokenRow:
    """A row of ordinary tokens: a prompt and a reply, without padding."""

    ids_L: Tensor
    num_reply: int
    media: PromptMedia | None = None
    """What its prompt shows besides text."""

    def said_by(self, policy: Any, device: torch.device) -> Tensor:
        """Log-probabilities of the reply's tokens by a policy, [T] in float32 on the CPU."""
        ids_BL = self.ids_L[None].to(device)
        positions_BL = torch.arange(len(self.ids_L), device=device)[None]
        reply_BT = torch.ones(1, self.num_reply, dtype=torch.long, device=device)
        media_B = None if self.media is None else [self.media]
        with torch.no_grad():
            return policy(ids_BL, torch.ones_like(ids_BL), positions_BL, reply_BT, media_B=media_B)[0][0].float().cpu()

    def said_by_model(self, model: Any) -> Tensor:
        """The same by a model of transformers, of its logits for text alone."""
        with torch.no_grad():
            log_probs_LV = model(input_ids=self.ids_L[None].to(model.device)).logits[0].float().log_softmax(-1).cpu()
        return log_probs_LV[:-1].gather(-1, self.ids_L[1:, None])[-self.num_reply :, 0]

    def after(self, media: PromptMedia, image_token: int) -> TokenRow:
        """The same row behind a picture."""
        picture = torch.full((media.num_tokens,), image_token)
        return TokenRow(torch.cat([picture, self.ids_L]), self.num_reply, media)


def token_rows(tokenizer: Any, config: Any, *, num_choices: int | None = None) -> list[TokenRow]:
    """Rows of several lengths, the same for every model of a vocabulary.

    Args: config: of the language model. num_choices: tokens that may be written are the first so many.
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
    """Where each value that rows give belongs, in words."""
    return [
        f"token {place} of the reply in {'a row with a picture' if row.media is not None else f'row {number}'}"
        for number, row in enumerate(rows)
        for place in range(row.num_reply)
    ]


def explained(said_N: Tensor, say: Callable[[], Tensor], model: nn.Module, dtype: torch.dtype) -> float:
    """How far two computations in a format may be apart. Args: said_N: what `say`, which asks `model`, gives."""
    exact = dtype is torch.float32
    unit = torch.finfo(dtype).eps / 2
    with _rounding(model, unit * (AMPLIFIED if exact else 1)):
        moved = float((say() - said_N).abs().max())
    return EXACT + (moved if exact else SAFETY * moved)


def difference(wanted_N: Tensor, found_N: Tensor, bound: float, places: list[str] | None = None) -> str | None:
    """The largest difference in words, and where it is, when it exceeds the bound; None when it does not."""
    difference_N = (found_N - wanted_N).abs()
    difference_N = torch.where(torch.isfinite(difference_N), difference_N, torch.inf)
    worst = int(difference_N.argmax())
    if float(difference_N[worst]) <= bound:
        return None
    where = places[worst] if places is not None else f"value {worst}"
    return (
        f"they differ by up to {float(difference_N[worst]):.3g} (at {where}: {float(wanted_N[worst]):.4f} against "
        f"{float(found_N[worst]):.4f}), where rounding explains {bound:.2g}"
    )


@contextmanager
def _rounding(model: nn.Module, unit: float) -> Iterator[None]:
    """For the block, what every layer gives is off by random numbers of relative size `unit`."""
    generators: dict[torch.device, torch.Generator] = {}

    def moved(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(moved(one) for one in value)
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        generator = generators.setdefault(value.device, torch.Generator(value.device).manual_seed(0))
        noise = torch.randn(value.shape, generator=generator, device=value.device, dtype=torch.float32)
        return (value * (1 + unit * noise)).to(value.dtype)

    layers = [module for module in model.modules() if next(module.parameters(recurse=False), None) is not None]
    hooks = [layer.register_forward_hook(lambda _layer, _inputs, output: moved(output)) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _other_senses(config: Any) -> list[int]:
    named = (getattr(config, name, None) for name in ("image_token_id", "video_token_id", "audio_token_id"))
    return [token for token in named if isinstance(token, int)]
