"""Changes of weights since the last sync, as bytes, in the format in which weights are sent.

At the learning rates of RL most updates are smaller than half a step of bfloat16, so most numbers
that an engine holds are already right. A range of a tensor is sent as the changed numbers and the
gaps between them, one byte each (255 means that the gap goes on in the next byte), or whole where
that is shorter.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

GAP_GOES_ON = 255


@dataclass(frozen=True)
class Changes:
    """The changed numbers of a range of one tensor, as bytes: first the gaps, then the numbers.

    Without gaps the numbers are the whole range.
    """

    name: str
    start: int
    stop: int
    num_gap_bytes: int
    num_value_bytes: int
    dtype: torch.dtype
    """Format of the numbers."""

    def __len__(self) -> int:
        return self.num_gap_bytes + self.num_value_bytes


def encode_changes(
    name: str, start: int, new: Tensor, held: Tensor | None
) -> tuple[Changes, Tensor] | None:
    """Return a range of a tensor as bytes, None where nothing changed. Bits are compared, so that a
    zero of the other sign and NaN are sent, too.

    Args: new, held: the range [N] as it is and as it was, on the CPU; None sends all of it.
    """
    stop = start + len(new)
    values = new.view(torch.uint8)
    if held is not None:
        differs = (values != held.view(torch.uint8)).view(len(new), -1).any(1)
        places = differs.nonzero().view(-1)
        if not len(places):
            return None
        gaps = _gap_bytes(places)
        chosen = new[places].view(torch.uint8)
        if len(gaps) + len(chosen) < len(values):
            change = Changes(name, start, stop, len(gaps), len(chosen), new.dtype)
            return change, torch.cat([gaps, chosen])
    return Changes(name, start, stop, 0, len(values), new.dtype), values


def _gap_bytes(places: Tensor) -> Tensor:
    """Return the numbers of unchanged places before each of ascending places, as bytes."""
    gaps = places.clone()
    gaps[1:] -= places[:-1] + 1
    longer = gaps // GAP_GOES_ON
    found = torch.full((len(gaps) + int(longer.sum()),), GAP_GOES_ON, dtype=torch.uint8)
    ends = (longer + 1).cumsum(0) - 1
    found[ends] = (gaps % GAP_GOES_ON).to(torch.uint8)
    return found


def places_of(gap_bytes: Tensor) -> Tensor:
    """Return the places that `_gap_bytes` was given."""
    goes_on = gap_bytes == GAP_GOES_ON
    steps = gap_bytes.long() + ~goes_on
    return (steps.cumsum(0) - 1)[~goes_on]


@torch.no_grad()
def apply_changes(change: Changes, sent: Tensor, target: Tensor) -> None:
    """Write changes into a range of a parameter, flattened. Args: sent: their bytes."""
    gap_bytes, values = sent.split([change.num_gap_bytes, change.num_value_bytes])
    # A view needs memory that starts at a whole number.
    numbers = values.clone().view(change.dtype).to(target)
    if change.num_gap_bytes:
        target[places_of(gap_bytes).to(target.device)] = numbers
    else:
        target.copy_(numbers)
