"""A folder of adapters alone, as `lora.export: adapter` and peft write it, as `model.path`.

Read without torch or peft, so that a recipe is checked before anything is loaded. A run with `lora`
goes on from the adapters over their base; without it, they are merged first (`merged_folder`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_core.errors import ModelError
from rl_core.runtime.user_paths import user_path
from schemas.sections.policy import LoraConfig

ADAPTER_CONFIG = "adapter_config.json"
"""File that identifies a folder as adapters in peft's format."""
ADAPTER_WEIGHTS = "adapter_model.safetensors"
_PLAIN: Mapping[str, tuple[object, ...]] = {
    "use_dora": (False, None),
    "use_rslora": (False, None),
    "lora_bias": (False, None),
    "bias": ("none", None),
    "fan_in_fan_out": (False, None),
    "modules_to_save": (None, []),
    "rank_pattern": (None, {}),
    "alpha_pattern": (None, {}),
    "layers_to_transform": (None, []),
    "layer_replication": (None, []),
    "trainable_token_indices": (None, []),
}
"""Options of peft, and their values in adapters that are W + alpha / rank * B A and no more."""


@dataclass(frozen=True)
class AdapterFolder:
    """Adapters of every layer that `target_modules` names, over a base model."""

    folder: Path
    base: str
    """The base model in the form of `model.path`: an absolute folder, or a hub id."""
    rank: int
    alpha: float
    target_modules: tuple[str, ...]

    @property
    def weights(self) -> Path:
        return self.folder / ADAPTER_WEIGHTS

    @property
    def lora(self) -> LoraConfig:
        """Settings that add the same adapters to the base."""
        return LoraConfig(
            rank=self.rank, alpha=self.alpha, target_modules=sorted(self.target_modules)
        )

    def check_continues(self, lora: LoraConfig) -> None:
        """Check that a recipe's `lora` describes these adapters. Raises: ModelError."""
        for key, wanted, found in (
            ("rank", lora.rank, self.rank),
            ("alpha", lora.alpha, self.alpha),
        ):
            if wanted != found:
                raise ModelError(
                    f"lora.{key} is {wanted:g}, and the adapters of model.path {self.folder} have "
                    f"{found:g}; set lora.{key}={found:g} to go on from them, or lora=null to "
                    "train all weights from what they give merged"
                )
        asked = lora.target_modules
        if asked is not None and set(asked) != set(self.target_modules):
            raise ModelError(
                f"lora.target_modules is {', '.join(sorted(asked))}, and the adapters of "
                f"model.path {self.folder} stand beside {', '.join(sorted(self.target_modules))}; "
                "name these to go on from them, or set lora=null to train all weights from what "
                "they give merged"
            )


def adapter_folder(path: str, key: str = "model.path") -> AdapterFolder | None:
    """Read a folder of adapters; None if a path is no such folder.

    Args: key: key of the recipe, for the message. Raises: ModelError on adapters that cannot be
    read, or are of another kind than low-rank matrices of linear layers.
    """
    folder = user_path(path)
    if not (folder / ADAPTER_CONFIG).is_file() or (folder / "config.json").is_file():
        return None
    where = f"{key} {path}"
    values = _read(folder / ADAPTER_CONFIG, where)
    if not (folder / ADAPTER_WEIGHTS).is_file():
        raise ModelError(f"{where}: the adapters have no {ADAPTER_WEIGHTS}; save them again")
    targets = values.get("target_modules")
    others = [name for name, plain in _PLAIN.items() if values.get(name) not in plain]
    if values.get("peft_type") != "LORA" or others or not isinstance(targets, list):
        kind = ", ".join(others) or (
            f"peft_type {values.get('peft_type')}"
            if values.get("peft_type") != "LORA"
            else f"target_modules {targets!r}"
        )
        raise ModelError(
            f"{where}: adapters with {kind} cannot be trained from; merge them with peft "
            "(merge_and_unload, save_pretrained) and name that folder"
        )
    rank, alpha = values.get("r"), values.get("lora_alpha")
    if not isinstance(rank, int) or not isinstance(alpha, int | float):
        raise ModelError(f"{where}: {ADAPTER_CONFIG} states no r and lora_alpha; save it again")
    return AdapterFolder(
        folder.absolute(), _base(values, where), rank, float(alpha), tuple(map(str, targets))
    )


def start_of(path: str, source: str) -> Path | None:
    """Return the file of the adapters that `model.path` names, if the loaded model is their base;
    None for a whole model. Raises: ModelError."""
    adapters = adapter_folder(path)
    if adapters is not None and adapters.base == source:
        return adapters.weights
    return None


def _read(file: Path, where: str) -> dict[str, Any]:
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{where}: {file.name} cannot be read ({error!s:.200})") from error
    if not isinstance(values, dict):
        raise ModelError(f"{where}: {file.name} is no JSON object; save the adapters again")
    return values


def _base(values: Mapping[str, object], where: str) -> str:
    """Return the base that adapters name, with its revision."""
    name, revision = values.get("base_model_name_or_path"), values.get("revision")
    if not isinstance(name, str) or not name.strip():
        raise ModelError(
            f"{where}: {ADAPTER_CONFIG} names no base model; set base_model_name_or_path to its "
            "folder or hub id"
        )
    if revision and not Path(name).is_dir():
        return f"{name}@{revision}"
    return name
