"""LoRA adapters (arXiv 2106.09685): injected before the FSDP wrap, switched while sampling."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

from rl_core.errors import ModelError
from rl_core.models.loading.unread import stood_in
from rl_core.models.policy import Policy
from rl_core.models.quantized import QuantizedLinear
from schemas.recipe import LoraConfig

PRODUCTS = (nn.Linear.forward, QuantizedLinear.forward)
"""Forward passes of linear layers that compute a product and nothing else."""
TRAINED = "default"
"""Name of the adapter that the optimizer updates."""
AVERAGED = "ema"
"""Name of the frozen adapter that holds its moving average (DiffusionNFT's old policy, arXiv
2509.16117)."""


def inject_lora(
    policy: Policy,
    config: LoraConfig,
    seed: int,
    *,
    averaged: bool = False,
    start: Path | None = None,
) -> None:
    """Add adapters to the linear layers, in place; the same seed gives the same initial weights on
    every rank.

    Args: averaged: add a second, frozen adapter that starts as a copy of the first. start: file of
    the first one's initial weights, in peft's format. Raises: ModelError when that does not fit.
    """
    from peft import LoraConfig as PeftLoraConfig
    from peft import get_peft_model

    from rl_core.kernels import AdaptedLinear

    targets = config.target_modules or policy.lora_targets
    if not targets:
        raise ModelError(
            f"lora: {type(policy.language_model).__name__} has no plain linear layer that an "
            "adapter could stand beside; name others with lora.target_modules, or train all "
            "weights (lora: null)"
        )
    left_out = _left_out(policy.model, targets) + _read_as_numbers(
        policy.model, config.target_modules
    )
    peft_config = PeftLoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,  # type: ignore[arg-type]
        lora_dropout=config.dropout,
        target_modules=targets,
        exclude_modules=left_out or None,
    )
    # peft's documented way to layers of one's own; underscored while it is experimental.
    peft_config._register_custom_module({nn.Linear: AdaptedLinear})
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings(), stood_in(policy.model):
        # peft warns that its own merge of an adapter beside a tied matrix is wrong; ours unties
        # (`merging`).
        warnings.filterwarnings("ignore", message="Model has `tie_word_embeddings=True`")
        torch.manual_seed(seed)
        policy.model = get_peft_model(policy.model, peft_config)
        if averaged:
            policy.model.add_adapter(AVERAGED, peft_config)
    if start is not None:
        load_adapters(policy, start)
    if averaged:
        policy.model.set_adapter(TRAINED)
        tensors = dict(policy.named_parameters())
        for name, shadow in tensors.items():
            if is_averaged(name):
                shadow.requires_grad_(False).data.copy_(tensors[trained_name(name)].data)


def load_adapters(policy: Policy, file: Path) -> None:
    """Copy adapters from a file in peft's format into those of a policy, before it is sharded.

    Raises: ModelError when the file has adapters of other layers or sizes, or cannot be read.
    """
    from peft import get_peft_model_state_dict, set_peft_model_state_dict
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        found = load_file(file)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{file} cannot be read ({error!s:.200}); save the adapters") from error
    wanted = get_peft_model_state_dict(policy.model, adapter_name=TRAINED)
    for name in sorted(found.keys() | wanted.keys()):
        sizes = []
        for side in (found, wanted):
            sizes.append(tuple(side[name].shape) if name in side else None)
        if sizes[0] != sizes[1]:
            has, needs = ("no such tensor" if size is None else str(size) for size in sizes)
            raise ModelError(
                f"{file} does not fit this base and lora: {name} is {has} in the file and {needs} "
                "here; name the same lora.rank and lora.target_modules, or set lora=null"
            )
    set_peft_model_state_dict(policy.model, found, adapter_name=TRAINED)


def _read_as_numbers(model: nn.Module, asked: list[str] | None) -> list[str]:
    """Return the names of layers whose weights a Mamba model's kernels read without calling the
    layer, so that an adapter has no effect.

    Args: asked: the layers that a recipe names. Raises: ModelError when one of them is such a
    layer.
    """
    from peft import LoraConfig as PeftLoraConfig
    from peft.tuners.tuners_utils import _check_lora_target_modules_mamba

    found = []
    for name, _ in model.named_modules():
        own = name.rpartition(".")[2]
        try:
            # peft knows the types of models, and refuses these layers itself, in words of its own.
            _check_lora_target_modules_mamba(PeftLoraConfig(), model, own)
        except ValueError:
            found.append(name)
            if any(name == one or name.endswith(f".{one}") for one in asked or ()):
                raise ModelError(
                    f"lora.target_modules: {own} of this model can carry no adapter, since its "
                    "kernels read the weight without calling the layer; leave it out"
                ) from None
    return found


def _left_out(model: nn.Module, targets: list[str] | str) -> list[str]:
    """Return the names of requested layers that get no adapter: frozen ones, and layers that
    compute more than a product.

    A model that is frozen as a whole is one whose adapters alone are trained.
    """
    some_learn = any(parameter.requires_grad for parameter in model.parameters())
    left_out = []
    for name, module in model.named_modules():
        own = [parameter.requires_grad for parameter in module.parameters(recurse=False)]
        is_frozen = some_learn and own and not any(own)
        if isinstance(targets, str):
            # Some routers are linear layers that answer with scores besides (Llama 4).
            is_linear = isinstance(module, nn.Linear)
            computes_more = type(module).forward not in PRODUCTS
            is_left_out = is_linear and (is_frozen or computes_more)
        else:
            is_left_out = is_frozen and any(
                name == one or name.endswith(f".{one}") for one in targets
            )
        if is_left_out:
            left_out.append(name)
    return left_out


def is_averaged(name: str) -> bool:
    """Return True if a parameter belongs to the averaged adapter."""
    return AVERAGED in name.split(".")


def trained_name(name: str) -> str:
    """Return the name of the trained parameter that an averaged one follows."""
    return ".".join(TRAINED if part == AVERAGED else part for part in name.split("."))


def is_adapter(name: str) -> bool:
    """Return True if a parameter was added by `inject_lora`."""
    return TRAINED in name.split(".") or is_averaged(name)


def base_name(name: str) -> str:
    """Return the name of a base model's parameter before the injection."""
    plain = name.replace("model.base_model.model.", "model.", 1)
    # Wrappers of several parameters of one module are nested.
    return ".".join(part for part in plain.split(".") if part != "base_layer")


@contextmanager
def adapter_in_use(policy: nn.Module, name: str) -> Iterator[None]:
    """Run forward passes of the block with another adapter, without gradients."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = []
    for module in policy.modules():
        if isinstance(module, BaseTunerLayer):
            layers.append(module)
    # peft's own set_adapter also turns gradients on and off, which parameters in FSDP's hands must
    # not see. This can go when it can leave them alone.
    for layer in layers:
        layer._active_adapter = [name]
    try:
        with torch.no_grad():
            yield
    finally:
        for layer in layers:
            layer._active_adapter = [TRAINED]
