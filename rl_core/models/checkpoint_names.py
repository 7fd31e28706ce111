"""What a model's parameters are called in the files of its checkpoints, where transformers renames them in loading."""

from __future__ import annotations

from typing import Any


def renamed_in_checkpoints(model: Any) -> list[str]:
    """Names in the files of a model's checkpoints that are not those of its parameters."""
    from transformers.core_model_loading import revert_weight_conversion

    named = dict(model.named_parameters())
    return sorted(revert_weight_conversion(model, named).keys() - named.keys())
