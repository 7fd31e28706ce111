"""What a forward pass keeps for the backward pass."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks


def num_kept(
    module: nn.Module, width: int, forward: Callable[[Any, Tensor], Tensor], states: Tensor
) -> int:
    """Numbers in rows of this width, other than weights of the module, that `forward(module,
    states)` keeps."""
    sizes: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        sizes[tensor.untyped_storage().data_ptr()] = tensor.numel() * (tensor.shape[-1] == width)
        return tensor

    weights = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    with saved_tensors_hooks(note, lambda tensor: tensor):
        result = forward(module, states)
    del result
    return sum(size for pointer, size in sizes.items() if pointer not in weights)
