"""Export of a trained diffusion policy for plain diffusers: a pipeline folder, or adapters that its
pipelines load."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from rl_core.errors import ModelError
from rl_core.models.adapters.lora import TRAINED
from rl_core.models.checks.comparison import Live
from rl_core.models.diffusion.base import DiffusionFamily
from rl_core.models.diffusion.policy import DiffusionPolicy
from rl_core.models.export.folder import trained_policy
from rl_core.models.export.stored_weights import Written, write_stored
from schemas.recipe import ExportKind, LoraConfig

if TYPE_CHECKING:
    from torch import nn

STORED = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Number formats by their names in safetensors files."""


class PipelineBundle(Protocol):
    """A pipeline, as `rl_core.models.diffusion.bundle` holds it."""

    source: str
    family: DiffusionFamily

    def load_policy(self, source: str | None = None) -> DiffusionPolicy: ...

    def adapted_policy(self, adapters: Path) -> DiffusionPolicy: ...

    def said_by(self, policy: DiffusionPolicy, device: torch.device) -> Tensor: ...


def export_pipeline(
    bundle: PipelineBundle,
    trained: dict[str, Tensor],
    lora: LoraConfig | None,
    out: Path,
    live: Live,
) -> None:
    """Write the pipeline with base weights plus `trained`, in the base's own number format, or the
    adapters alone.

    Untrained parts are copied unchanged. The export is loaded again by plain diffusers, and must
    give the results of the policy with its weights rounded to the format.
    Args: trained: full tensors under the policy's parameter names. live: results of the policy they
    were taken from.
    Raises: ExportMismatch when the collected or the written weights compute another policy.
    """
    alone = lora is not None and lora.export is ExportKind.ADAPTER
    written = _write(bundle, trained_policy(bundle, trained, lora), out, live, adapters_alone=alone)
    policy = bundle.adapted_policy(out) if alone else bundle.load_policy(str(out))
    written.check(bundle.said_by(policy.eval(), torch.device("cpu")), policy.transformer, out)


def _write(
    bundle: PipelineBundle, policy: DiffusionPolicy, out: Path, live: Live, *, adapters_alone: bool
) -> Written:
    parts = trained_parts(bundle.family, policy.transformer)
    formats = {name: _stored_dtype(Path(bundle.source) / name) for name in parts}

    def format_of(name: str) -> torch.dtype:
        if len(formats) == 1:
            return next(iter(formats.values()))
        return formats[name.split(".")[1]]

    def write() -> nn.Module | None:
        if adapters_alone:
            _save_adapters(bundle.family, policy, out)
            return None
        trained = trained_parts(bundle.family, policy.transformer)
        shutil.copytree(bundle.source, out, ignore=_all_but(bundle.source, set(trained)))
        for name, part in trained.items():
            part.save_pretrained(out / name)
        return policy.transformer

    say = partial(bundle.said_by, policy, torch.device("cpu"))
    return write_stored(policy, say, format_of, live, write, merge=not adapters_alone)


def trained_parts(family: DiffusionFamily, transformer: nn.Module) -> dict[str, Any]:
    """Return the components of the pipeline that make up a trained module, by the pipeline's
    names."""
    if family.transformer is family.pipeline.transformer:
        return {"transformer": transformer}
    return dict(transformer.named_children())


def _save_adapters(family: DiffusionFamily, policy: DiffusionPolicy, out: Path) -> None:
    from peft import get_peft_model_state_dict

    pipeline = type(family.pipeline)
    if not hasattr(pipeline, "save_lora_weights"):
        raise ModelError(f"{pipeline.__name__} loads no adapters; set lora.export: merged")
    state = get_peft_model_state_dict(policy.model, adapter_name=TRAINED)
    state = {
        name.removeprefix("base_model.model."): value.contiguous() for name, value in state.items()
    }
    family.save_adapters(state, policy.model.peft_config[TRAINED].to_dict(), out)


def _all_but(source: str, skipped: set[str]) -> Callable[[str, list[str]], set[str]]:
    """Return a filter for `copytree` that leaves out these top-level folders."""
    return lambda folder, names: skipped & set(names) if Path(folder) == Path(source) else set()


def _stored_dtype(folder: Path) -> torch.dtype:
    from safetensors import safe_open

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        return torch.float32
    with safe_open(files[0], framework="pt") as file:
        name = next(iter(file.keys()))
        return STORED.get(file.get_slice(name).get_dtype(), torch.float32)
