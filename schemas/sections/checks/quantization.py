"""Settings that do not fit a base model of 4 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schemas.domains import Domain, ModelKind

if TYPE_CHECKING:
    from schemas.sections.placement import PlacementConfig
    from schemas.sections.policy import LoraConfig, ModelConfig
    from schemas.sections.rollout import RolloutConfig


def in_full_precision(model: ModelConfig) -> ModelConfig:
    """Return the settings of a model that is not packed, such as a teacher or a finished one."""
    return model.model_copy(update={"quantize": None})


def check_quantized(
    model: ModelConfig,
    lora: LoraConfig | None,
    rollout: RolloutConfig,
    placement: PlacementConfig,
    domain: Domain,
) -> None:
    """Raises: ValueError for a setting that `model.quantize` does not work with."""
    if model.quantize is None:
        return
    if domain.traits.model not in (ModelKind.TEXT, ModelKind.SEEING):
        problem = f"domain: {domain} has no language model of one folder; leave it out"
    elif lora is None:
        problem = "weights of 4 bits cannot be trained; set lora, or leave it out"
    elif lora.export == "adapter":
        problem = (
            "lora.export: adapter would be read over the base in full precision, which is another "
            "model; use merged"
        )
    elif rollout.engine.owns_model:
        problem = (
            f"rollout.engine: {rollout.engine} would sample from the base in full precision, which "
            "is another model; use in_process"
        )
    elif placement.tp_size > 1:
        problem = f"placement.tp_size: {placement.tp_size} cuts matrices, and packed ones are not"
    elif placement.ep_size > 1:
        problem = f"placement.ep_size: {placement.ep_size} deals out stacks of experts, and packed "
        problem += "ones are not"
    elif model.exact:
        problem = "model.exact computes with matrices as they are stored; leave out one of them"
    else:
        return
    raise ValueError(f"model.quantize: {model.quantize}: {problem}")
