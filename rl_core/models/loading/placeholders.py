"""Models of transformers built as `from_pretrained` builds them, except that no weight is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from safetensors import safe_open
from torch import Tensor, nn

from rl_core.models.backbone import blocks_named
from rl_core.models.loading.unread import UNREAD, Source, Unread

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SOURCE = "weight_source"
"""Attribute of a placeholder while a model is built."""


class ReadWhole(Exception):
    """A model that cannot be read part by part, with the reason."""


_open: ContextVar[tuple[ExitStack, float, int] | None] = ContextVar(
    "weights_left_unread", default=None
)


@contextmanager
def weights_left_unread(keep: float = 0.0, room_bytes: int = 0) -> Iterator[None]:
    """Let `load_model` leave placeholders in its models during the block; they compute by weights
    that are read when they are needed, and have none after the block.

    Args: keep: share of the layers that are in memory for the whole block. room_bytes: more of them
    are, as far as all that are fit into it. Raises: ReadWhole from a load whose files do not hold
    the model's weights one by one under their names (converted, quantised, pickled or missing
    ones).
    """
    with ExitStack() as stack:
        token = _open.set((stack, keep, room_bytes))
        try:
            yield
        finally:
            _open.reset(token)


def built(load: Callable[[], PreTrainedModel]) -> PreTrainedModel:
    """Return a model by `from_pretrained`, in `weights_left_unread` with placeholders.

    Everything but the weights is as `from_pretrained` makes it: buffers, ties, modes.
    """
    found = _open.get()
    if found is None:
        return load()
    stack, keep, room_bytes = found
    from transformers import PreTrainedModel

    # transformers has no public way to build a model without its weights and with its buffers;
    # this can go when it has. What it reads the weights by is left out, all else runs.
    with patch.object(PreTrainedModel, "_load_pretrained_model", staticmethod(_found)):
        model = load()
    stack.enter_context(_unread(model).streamed(model, keep, room_bytes))
    return model


def _unread(model: PreTrainedModel) -> Unread:
    """Return the sources of a model's placeholders, which it keeps. Raises: ReadWhole when it has
    no repeated blocks, or a tensor without a source."""
    layers = blocks_named(model, model._no_split_modules or ())
    if not layers:
        raise ReadWhole("it has no repeated blocks")
    pairs = []
    for name, parameter in model.named_parameters():
        source = getattr(parameter, SOURCE, None)
        if source is not None:
            pairs.append((parameter, source))
        elif parameter.is_meta:
            raise ReadWhole(f"{name} is in no file")
    for name, buffer in model.named_buffers():
        if buffer.is_meta:
            raise ReadWhole(f"the buffer {name} is in no file")
    unread = Unread(pairs, layers)
    setattr(model, UNREAD, unread)
    return unread


def _found(
    model: PreTrainedModel,
    state_dict: object,
    checkpoint_files: list[str] | None,
    load_config: Any,
    expected_keys: object = None,
) -> tuple[Any, None]:
    """Take the place of transformers' reading of weights: note the source of each on its
    placeholder."""
    from transformers.utils.loading_report import LoadStateDictInfo

    files = checkpoint_files or []
    if load_config.is_quantized:
        raise ReadWhole("its weights are quantised")
    if not files or not all(str(file).endswith(".safetensors") for file in files):
        raise ReadWhole("its weights are in no safetensors file")
    wanted = model.state_dict(keep_vars=True)
    found = _sources(model, [Path(file) for file in files], load_config.weight_mapping or [])
    for key, (source, shape) in found.items():
        placeholder = wanted[key]
        if list(placeholder.shape) != shape:
            raise ReadWhole(f"{key} has another shape in its file")
        own = Source(source.file, source.name, placeholder.dtype)
        if isinstance(placeholder, nn.Parameter):
            setattr(placeholder, SOURCE, own)
            # As transformers marks what it has read, so that it is not drawn anew.
            placeholder._is_hf_initialized = True  # type: ignore[attr-defined]
        else:
            _set_buffer(model, key, own.read())
    missing = wanted.keys() - found.keys()
    if lost := missing - model.all_tied_weights_keys.keys():
        raise ReadWhole(f"{min(lost)} is in no file")
    return LoadStateDictInfo(set(missing), set(), set(), [], {}, set()), None


def _sources(
    model: PreTrainedModel, files: list[Path], mapping: list[Any]
) -> dict[str, tuple[Source, list[int]]]:
    """Return the source and the shape of each of a model's tensors, under the names that
    transformers gives them. Raises: ReadWhole when one is made of others."""
    from transformers.core_model_loading import (
        WeightConverter,
        WeightRenaming,
        dot_natural_key,
        rename_source_key,
    )

    renamings = [one for one in mapping if isinstance(one, WeightRenaming)]
    converters = [one for one in mapping if isinstance(one, WeightConverter)]
    in_file: dict[str, tuple[Path, list[int]]] = {}
    for file in files:
        with safe_open(file, framework="pt", backend="pread") as opened:
            for name in opened.keys():  # noqa: SIM118  # no dict
                in_file[name] = file, opened.get_slice(name).get_shape()
    wanted = model.state_dict()
    prefix = model.base_model_prefix
    found: dict[str, tuple[Source, list[int]]] = {}
    for name in sorted(in_file, key=dot_natural_key):
        key, made = rename_source_key(name, renamings, converters, prefix, wanted)
        if key not in wanted and name in wanted:
            key, made = rename_source_key(name, [], [], prefix, wanted)
        if made is not None:
            raise ReadWhole(f"{name} is converted when it is read")
        if key in found:
            raise ReadWhole(f"{key} is in its files twice")
        if key in wanted:
            file, shape = in_file[name]
            found[key] = Source(file, name, wanted[key].dtype), shape
    return found


def _set_buffer(model: nn.Module, key: str, value: Tensor) -> None:
    path, _, name = key.rpartition(".")
    value._is_hf_initialized = True  # type: ignore[attr-defined]
    owner = model.get_submodule(path)
    owner._buffers[name] = value
