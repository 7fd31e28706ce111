"""Writing a trained policy as an ordinary Hugging Face folder, and reading it back as anybody would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rl_core.models.bundle import ModelBundle
from rl_core.models.probe import Live, TokenRows, check_same, explained
from rl_core.models.stored_weights import Saved, check_read_back, round_to_stored, saved_tensors, take_stored
from rl_core.train.lora import TRAINED, inject_lora
from schemas.recipe import ExportKind, LoraConfig

CPU = torch.device("cpu")


def export_policy(
    bundle: ModelBundle, trained: dict[str, Tensor], lora: LoraConfig | None, out: Path, live: Live
) -> None:
    """Write base weights plus `trained` to `out`, in the base model's own number format, or the adapters alone.

    Adapters keep float32. Their folder names the base model by where this run found it.
    What was written is loaded again by plain transformers and has to say what the policy says, with its weights rounded
    to the format: in float32, so that it is the weights that are compared.
    Args: trained: full, unsharded tensors under the policy's parameter names. live: of the policy they were taken from.
    Raises: ExportMismatch when what was taken, or what was written, is another policy.
    """
    policy = trained_policy(bundle, trained, lora)
    rows = bundle.probe_rows
    said_N = rows.said_by(policy, CPU)
    what = f"the trained policy and the weights taken from it for {out.name}"
    check_same(
        what, live.said_N, said_N, explained(lambda: rows.said_by(policy, CPU), policy, live.dtype), rows.places()
    )
    model_class, saved = type(policy.language_model), dict[str, Saved]()
    if lora is not None and lora.export is ExportKind.ADAPTER:
        bound = explained(lambda: rows.said_by(policy, CPU), policy, torch.float32)
        _name_base(policy.model.peft_config[TRAINED], bundle.source)
        policy.model.save_pretrained(out, selected_adapters=[TRAINED])
    else:
        dtype = _stored_dtype(bundle)
        merged = round_to_stored(policy, dtype)
        said_N = rows.said_by(policy, CPU)
        bound = explained(lambda: rows.said_by(policy, CPU), policy, torch.float32)
        take_stored(policy, merged, dtype)
        policy.model.save_pretrained(out)
        saved = saved_tensors(policy.model)
    (bundle.processor or bundle.tokenizer).save_pretrained(out)
    del policy
    model = model_class.from_pretrained(out, dtype=torch.float32).eval()
    check_read_back(saved, model, str(out))
    what = f"the trained policy and the folder {out.name} that was written of it"
    check_same(what, said_N, rows.said_by_model(model), bound, rows.places())


def trained_policy(bundle: Any, trained: dict[str, Tensor], lora: LoraConfig | None) -> Any:
    """A policy in float32 on the CPU with these weights, adapters beside the base. Raises: ValueError on unknown ones."""
    policy = bundle.load_policy()
    if lora is not None:
        inject_lora(policy, lora, seed=0)
    unexpected = policy.load_state_dict(trained, strict=False).unexpected_keys
    if unexpected:
        raise ValueError(f"trained weights the model does not have: {unexpected[:3]}")
    return policy.eval()


def _name_base(adapter: Any, source: str) -> None:
    """Let an adapter's folder name its base so that it is found from any folder."""
    name, _, revision = source.partition("@")
    adapter.base_model_name_or_path = str(Path(name).resolve()) if Path(name).is_dir() else name
    adapter.revision = revision or None


def _stored_dtype(bundle: ModelBundle) -> torch.dtype:
    from transformers import AutoConfig

    name, _, revision = bundle.source.partition("@")
    stored = AutoConfig.from_pretrained(name, revision=revision or None).dtype
    return stored if isinstance(stored, torch.dtype) else torch.float32
