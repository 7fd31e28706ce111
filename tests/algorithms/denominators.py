"""The counts that a step of one batch is divided by."""

from torch import Tensor

from rl_core.algorithms import Denominators


def denominators_of(mask_BT: Tensor, max_length: int | None = None) -> Denominators:
    """The counts of these rows; `max_length` is T when unset."""
    counts_B = (mask_BT != 0).sum(dim=1)
    num_sequences = float((counts_B > 0).sum())
    return Denominators(float(counts_B.sum()), num_sequences, max_length or mask_BT.shape[1])
