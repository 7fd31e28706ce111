"""The gate before the `champion` alias moves."""

from __future__ import annotations

from dataclasses import dataclass

from schemas.receipts import EvalReceipt


@dataclass(frozen=True)
class Incumbent:
    """What a new model is compared with."""

    name: str
    """`champion v3` or `baseline`."""
    accuracy: float
    eval_digest: str


@dataclass(frozen=True)
class Verdict:
    """Outcome of the gate, with its reason in words."""

    promoted: bool
    reason: str


def judge(final: EvalReceipt, incumbent: Incumbent, margin: float) -> Verdict:
    """Promote only on a gain of more than `margin`, measured on the very same held-out rows."""
    if incumbent.eval_digest != final.eval_digest:
        return Verdict(False, f"{incumbent.name} was evaluated on other rows; evaluate it on these before comparing")
    gain = final.accuracy - incumbent.accuracy
    if gain > margin:
        return Verdict(
            True, f"accuracy {final.accuracy:.3f} beats {incumbent.name} ({incumbent.accuracy:.3f}) by {gain:+.3f}"
        )
    return Verdict(
        False,
        f"accuracy {final.accuracy:.3f} does not beat {incumbent.name} ({incumbent.accuracy:.3f}) "
        f"by more than {margin}",
    )
