"""Export of a trained policy as an ordinary Hugging Face folder, verified by reading it back."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import torch
from torch import Tensor, nn

from rl_core.models.adapters.lora import TRAINED, inject_lora
from rl_core.models.causal_lm import CausalLMPolicy
from rl_core.models.chat.stop_ids import Chatting, record_stop_ids, sampled_stop_ids
from rl_core.models.checks.comparison import Live, TokenRow, places_in
from rl_core.models.export.stored_weights import Written, formats, write_stored
from rl_core.models.export.untouched import carry_over
from rl_core.models.family import seeing_policy
from rl_core.models.policy import Policy
from rl_core.models.quantized import unpack
from rl_core.models.text_part import TextPartPolicy
from schemas.recipe import ExportKind, LoraConfig

if TYPE_CHECKING:
    from peft import PeftConfig
    from transformers import PreTrainedModel


P = TypeVar("P", bound=Policy, covariant=True)


class Loads(Protocol[P]):
    """A model whose policy can be loaded once more."""

    def load_policy(self) -> P:
        """Load a new copy of the policy before training."""
        ...


class TokenBundle(Chatting, Protocol):
    """A model that writes tokens, as `rl_core.models.bundle` holds it."""

    source: str

    @property
    def compared_rows(self) -> list[TokenRow]: ...

    def load_policy(self) -> CausalLMPolicy: ...

    def said_by(self, policy: CausalLMPolicy, device: torch.device) -> Tensor: ...


def export_policy(
    bundle: TokenBundle, trained: dict[str, Tensor], lora: LoraConfig | None, out: Path, live: Live
) -> None:
    """Write base weights plus `trained` to `out`, in the base model's own number format, or the
    adapters alone.

    Adapters keep float32. Their folder names the base model by the path where this run found it.
    The export is loaded again by plain transformers and must give the results of the policy with
    its weights rounded to the format; both compute in float32, so that the weights are compared.
    Args: trained: full, unsharded tensors under the policy's parameter names. live: results of the
    policy they were taken from.
    Raises: ExportMismatch when the collected or the written weights compute another policy.
    """
    model_class, written = _write(bundle, trained_policy(bundle, trained, lora), lora, out, live)
    model = model_class.from_pretrained(out, dtype=torch.float32).eval()
    said = [_said_by(model, row, bundle) for row in bundle.compared_rows]
    written.check(torch.cat(said), model, out, places_in(bundle.compared_rows))


def _write(
    bundle: TokenBundle, policy: CausalLMPolicy, lora: LoraConfig | None, out: Path, live: Live
) -> tuple[type[PreTrainedModel], Written]:
    """Write the folder. Returns: the class that reads it, and the expected content."""
    adapters_alone = lora is not None and lora.export is ExportKind.ADAPTER

    def write() -> nn.Module | None:
        (bundle.processor or bundle.tokenizer).save_pretrained(out)
        record_stop_ids(policy.language_model, sampled_stop_ids(policy.language_model, bundle))
        if adapters_alone:
            _name_base(policy.model.peft_config[TRAINED], bundle.source)
            policy.model.save_pretrained(out, selected_adapters=[TRAINED])
            policy.language_model.generation_config.save_pretrained(out)
            return None
        policy.model.save_pretrained(out)
        if isinstance(policy, TextPartPolicy):
            carry_over(bundle.source, policy.model, out)
        return policy.model

    say = partial(bundle.said_by, policy, torch.device("cpu"))
    format_of = formats(policy.model, stored_dtype(bundle))
    model_class = type(policy.language_model)
    merge, places = not adapters_alone, places_in(bundle.compared_rows)
    return model_class, write_stored(
        policy, say, format_of, live, write, merge=merge, places=places
    )


def _said_by(model: PreTrainedModel, row: TokenRow, bundle: TokenBundle) -> Tensor:
    if row.media is None:
        return row.said_by_model(model)
    # Only the policy knows which picture belongs where; its forward passes are the model's own.
    return row.said_by(seeing_policy(model, bundle.config).eval(), torch.device("cpu"))


def trained_policy(bundle: Loads[P], trained: dict[str, Tensor], lora: LoraConfig | None) -> P:
    """Return a policy in float32 on the CPU with these weights, and separate adapters.

    Raises: ValueError on weights that it does not have.
    """
    from transformers import PreTrainedModel

    policy = bundle.load_policy()
    unpack(policy)
    if lora is not None:
        inject_lora(policy, lora, seed=0)
    unexpected = policy.load_state_dict(trained, strict=False).unexpected_keys
    if unexpected:
        raise ValueError(f"trained weights the model does not have: {unexpected[:3]}")
    for module in policy.modules():
        # Flash attention runs on GPUs only; this copy computes on the CPU.
        if isinstance(module, PreTrainedModel) and str(
            module.config._attn_implementation
        ).startswith("flash"):
            module.set_attn_implementation("sdpa")
    return policy.eval()


def _name_base(adapter: PeftConfig, source: str) -> None:
    """Make an adapter's folder name its base so that it is found from any folder."""
    name, _, revision = source.partition("@")
    adapter.base_model_name_or_path = str(Path(name).resolve()) if Path(name).is_dir() else name
    adapter.revision = revision or None


def stored_dtype(bundle: TokenBundle) -> torch.dtype:
    from transformers import AutoConfig

    name, _, revision = bundle.source.partition("@")
    config = AutoConfig.from_pretrained(name, revision=revision or None)
    stored = config.dtype or config.get_text_config().dtype
    if isinstance(stored, torch.dtype):
        return stored
    return torch.float32
