"""Whether two copies of a model say the same: what each says of a few fixed inputs, compared.

What rounding explains is measured, not guessed: the same inputs once more, with what every layer gives moved by random
rounding errors of the format. What is further away than that is another model.

Shapes: B rows of L = P + T tokens, N values that were said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rl_core.models.media import PromptMedia

NUM_ROWS, LONGEST_PROMPT, LONGEST_REPLY = 6, 8, 12
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
class TokenRows:
    """Rows of ordinary tokens, ragged on both sides."""

    ids_BL: Tensor
    used_BL: Tensor
    reply_BT: Tensor
    media: PromptMedia | None = None
    """What each row shows besides text."""

    @classmethod
    def of(cls, tokenizer: Any, config: Any, *, num_choices: int | None = None) -> TokenRows:
        """The same rows for every model of a vocabulary.

        Args: config: of the language model. num_choices: tokens that may be written are the first so many.
        """
        size = min(len(tokenizer), config.get_text_config().vocab_size, num_choices or len(tokenizer))
        special = {*tokenizer.all_special_ids, *_picture_tokens(config)}
        ordinary = torch.tensor([token for token in range(size) if token not in special])
        longest = getattr(config.get_text_config(), "max_position_embeddings", None) or LONGEST_PROMPT + LONGEST_REPLY
        prompt, reply = min(LONGEST_PROMPT, longest // 2), min(LONGEST_REPLY, longest // 2)
        generator = torch.Generator().manual_seed(0)
        ids_BL = ordinary[torch.randint(len(ordinary), (NUM_ROWS, prompt + reply), generator=generator)]
        prompts_B, replies_B = (
            torch.linspace(shortest, width, NUM_ROWS).long() for shortest, width in ((1, prompt), (reply, 1))
        )
        asked_BP = torch.arange(prompt) >= prompt - prompts_B[:, None]
        reply_BT = torch.arange(reply) < replies_B[:, None]
        used_BL = torch.cat([asked_BP, reply_BT], 1)
        return cls(ids_BL.masked_fill(~used_BL, tokenizer.pad_token_id or 0), used_BL.long(), reply_BT.long())

    def shown(self, media: PromptMedia, image_token: int) -> TokenRows:
        """The first row alone, after a picture that its prompt begins with."""
        picture = torch.full((1, media.num_tokens), image_token)
        ids, used = self.ids_BL[:1], self.used_BL[:1]
        return TokenRows(
            torch.cat([picture, ids], 1), torch.cat([torch.ones_like(picture), used], 1), self.reply_BT[:1], media
        )

    @torch.no_grad()
    def said_by(self, policy: Any, device: torch.device) -> Tensor:
        """Log-probabilities of the replies' tokens by a policy, [N], padded as in a rollout."""
        media_B = None if self.media is None else [self.media] * len(self.ids_BL)
        positions_BL = (self.used_BL.cumsum(-1) - 1).clamp_min(0)
        rows = (one.to(device) for one in (self.ids_BL, self.used_BL, positions_BL, self.reply_BT))
        return policy(*rows, media_B=media_B)[0].cpu()[self.reply_BT.bool()].float()

    @torch.no_grad()
    def said_by_model(self, model: Any) -> Tensor:
        """The same by a model of transformers: all its logits, each row by itself and without padding."""
        said = []
        for ids_L, used_L, reply_T in zip(self.ids_BL, self.used_BL.bool(), self.reply_BT, strict=True):
            ids_S = ids_L[used_L].to(model.device)
            log_probs_SV = model(input_ids=ids_S[None]).logits[0, :-1].float().log_softmax(-1)
            said.append(log_probs_SV.gather(-1, ids_S[1:, None])[-int(reply_T.sum()) :, 0])
        return torch.cat(said).cpu()

    def places(self) -> list[str]:
        """Where each value belongs, in words."""
        what = "row" if self.media is None else "row with a picture"
        return [f"{what} {row}, token {place} of its reply" for row, place in self.reply_BT.nonzero().tolist()]


def explained(say: Callable[[], Tensor], model: nn.Module, dtype: torch.dtype) -> float:
    """How far two computations in a format may be apart. Args: say: asks `model`, which computes in float32 or so."""
    exact = dtype is torch.float32
    unit = torch.finfo(dtype).eps / 2
    before = say()
    with _rounding(model, unit * (AMPLIFIED if exact else 1)):
        moved = float((say() - before).abs().max())
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


def _picture_tokens(config: Any) -> list[int]:
    named = (getattr(config, name, None) for name in ("image_token_id", "video_token_id", "audio_token_id"))
    return [token for token in named if isinstance(token, int)]
