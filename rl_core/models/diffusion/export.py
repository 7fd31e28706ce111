"""Writing a trained diffusion policy for plain diffusers: a pipeline folder, or adapters its pipelines load."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rl_core.errors import ModelError
from rl_core.models.diffusion.base import DiffusionFamily
from rl_core.models.diffusion.policy import DiffusionPolicy
from rl_core.train.lora import TRAINED, inject_lora
from schemas.recipe import ExportKind, LoraConfig

if TYPE_CHECKING:
    from rl_core.models.diffusion.bundle import DiffusionBundle

STORED = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Number formats as safetensors files name them."""


def export_pipeline(bundle: DiffusionBundle, trained: dict[str, Tensor], lora: LoraConfig | None, out: Path) -> None:
    """Write the pipeline with base weights plus `trained`, in the base's own number format, or the adapters alone.

    What was not trained is copied as it is. Args: trained: full tensors under the policy's parameter names.
    """
    policy = bundle.load_policy()
    if lora is not None:
        inject_lora(policy, lora, seed=0)
    unexpected = policy.load_state_dict(trained, strict=False).unexpected_keys
    if unexpected:
        raise ValueError(f"trained weights the model does not have: {unexpected[:3]}")
    if lora is not None and lora.export is ExportKind.ADAPTER:
        _save_adapters(bundle.family, policy, out)
        return
    if lora is not None:
        # In place: the transformer below the adapters is left with the sum.
        policy.model.merge_and_unload()
    parts = trained_parts(bundle.family, policy.transformer)
    shutil.copytree(bundle.source, out, ignore=_all_but(bundle.source, set(parts)))
    for name, part in parts.items():
        part.to(_stored_dtype(Path(bundle.source) / name)).save_pretrained(out / name)


def trained_parts(family: DiffusionFamily, transformer: Any) -> dict[str, Any]:
    """The components of the pipeline that a trained module consists of, by the pipeline's names."""
    if family.transformer is family.pipeline.transformer:
        return {"transformer": transformer}
    return dict(transformer.named_children())


def _save_adapters(family: DiffusionFamily, policy: DiffusionPolicy, out: Path) -> None:
    from peft import get_peft_model_state_dict

    pipeline = type(family.pipeline)
    if not hasattr(pipeline, "save_lora_weights"):
        raise ModelError(f"{pipeline.__name__} loads no adapters; set lora.export: merged")
    state = get_peft_model_state_dict(policy.model, adapter_name=TRAINED)
    state = {name.removeprefix("base_model.model."): value.contiguous() for name, value in state.items()}
    family.save_adapters(state, policy.model.peft_config[TRAINED].to_dict(), out)


def _all_but(source: str, skipped: set[str]) -> Any:
    """For `copytree`: leaves these folders of the top out."""
    return lambda folder, names: skipped & set(names) if Path(folder) == Path(source) else set()


def _stored_dtype(folder: Path) -> torch.dtype:
    from safetensors import safe_open

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        return torch.float32
    with safe_open(files[0], framework="pt") as file:
        name = next(iter(file.keys()))
        return STORED.get(file.get_slice(name).get_dtype(), torch.float32)
