"""Writing a trained policy as an ordinary Hugging Face folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from rl_core.models.bundle import ModelBundle
from rl_core.models.stop_ids import record_stop_ids, sampled_stop_ids
from rl_core.models.text_part import TextPartPolicy
from rl_core.models.untouched import carry_over
from rl_core.train.lora import TRAINED, inject_lora
from schemas.recipe import ExportKind, LoraConfig


def export_policy(bundle: ModelBundle, trained: dict[str, Tensor], lora: LoraConfig | None, out: Path) -> None:
    """Write base weights plus `trained` to `out`, in the base model's own number format, or the adapters alone.

    Adapters keep float32. Their folder names the base model by where this run found it.
    Args: trained: full, unsharded tensors under the policy's parameter names.
    """
    policy = bundle.load_policy()
    if lora is not None:
        inject_lora(policy, lora, seed=0)
    unexpected = policy.load_state_dict(trained, strict=False).unexpected_keys
    if unexpected:
        raise ValueError(f"trained weights the model does not have: {unexpected[:3]}")
    model: Any = policy.model
    record_stop_ids(policy.language_model, sampled_stop_ids(policy.language_model, bundle))
    if lora is not None and lora.export is ExportKind.ADAPTER:
        model.save_pretrained(out, selected_adapters=[TRAINED])
        policy.language_model.generation_config.save_pretrained(out)
    else:
        model = model.merge_and_unload() if lora is not None else model
        _cast(model, _stored_dtype(bundle))
        model.save_pretrained(out)
        if isinstance(policy, TextPartPolicy):
            carry_over(bundle.source, model, out)
    (bundle.processor or bundle.tokenizer).save_pretrained(out)


def _cast(model: Any, dtype: Any) -> None:
    """Store real numbers in a format; angles that are kept as complex ones (Llama 4) stay."""
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            tensor.data = tensor.data.to(dtype)


def _stored_dtype(bundle: ModelBundle) -> Any:
    import torch
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(bundle.source.partition("@")[0])
    stored = config.dtype or config.get_text_config().dtype
    return stored if isinstance(stored, torch.dtype) else torch.float32
