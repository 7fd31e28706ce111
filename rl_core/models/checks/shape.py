"""Properties in a model's `config.json`, under the names that most families use; read without
importing torch."""

from __future__ import annotations

import ast
import importlib.util
import json
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rl_core.errors import ModelError

NAMES: dict[str, tuple[str, ...]] = {
    "hidden_size": ("n_embd", "d_model", "embed_dim", "emb_dim"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers", "layers", "decoder_layers"),
    "num_attention_heads": (
        "n_head",
        "n_heads",
        "num_heads",
        "attention_heads",
        "decoder_attention_heads",
    ),
    "num_key_value_heads": ("num_kv_heads", "n_head_kv"),
    "intermediate_size": ("n_inner", "ffn_dim", "ffn_hidden_size", "d_ff", "decoder_ffn_dim"),
    "max_position_embeddings": ("n_positions", "max_seq_len", "model_max_length"),
    "num_experts": ("num_local_experts", "n_routed_experts", "moe_num_experts"),
    "moe_intermediate_size": ("expert_ffn_hidden_size",),
}
"""Other families' names of each property of a language model."""
NESTED = ("text_config", "llm_config", "language_config", "decoder")
"""Keys under which multimodal checkpoints keep the language model's part."""
CAUSAL = "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"
SEES = ("MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES", "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES")
"""transformers' tables of multimodal models that generate text."""


def text_part(config: Mapping[str, object]) -> Mapping[str, object]:
    """Return the part about the language model: the nested one of a multimodal checkpoint."""
    parts = (config.get(name) for name in NESTED)
    return next((part for part in parts if isinstance(part, Mapping) and part), config)


def named(config: Mapping[str, object]) -> dict[str, Any]:
    """Return the language model's part with the properties of `NAMES` under their usual names, if
    they are stated."""
    found = dict(text_part(config))
    for name, others in NAMES.items():
        if found.get(name) is None:
            found[name] = next(
                (found[other] for other in others if found.get(other) is not None), None
            )
    return {name: value for name, value in found.items() if value is not None}


def read_config(folder: Path) -> dict[str, Any] | None:
    """Read the `config.json` of a folder; return None if there is none.

    Raises: ModelError when it is not the JSON object that it should be.
    """
    path = folder / "config.json"
    if path.is_file():
        return read_object(path)
    return None


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object. Raises: ModelError when it does not."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: no readable JSON ({error}); copy the file again") from error
    if not isinstance(config, dict):
        raise ModelError(f"{path}: {type(config).__name__}, not an object; copy the file again")
    return config


@cache
def classes_of(mapping: str) -> Mapping[str, str]:
    """Return the class of each `model_type`, of one of transformers' auto classes.

    The table is read from transformers' source: importing it takes seconds, since it imports torch.
    Empty if the source has an unexpected form, so that nothing is refused for that.
    """
    return _tables("modeling_auto.py").get(mapping, {})


@cache
def known_types() -> frozenset[str]:
    """Return every `model_type` of the installed transformers; empty if that is unknown."""
    return frozenset(_tables("auto_mappings.py").get("CONFIG_MAPPING_NAMES", {}))


def transformers_version() -> str:
    """Return the version of the installed transformers."""
    return version("transformers")


@cache
def _tables(name: str) -> dict[str, dict[str, str]]:
    spec = importlib.util.find_spec("transformers")
    path = Path(spec.origin or "").parent / "models" / "auto" / name if spec else Path(name)
    if not path.is_file():
        return {}
    tables: dict[str, dict[str, str]] = {}
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        if (
            isinstance(statement, ast.Assign)
            and isinstance(statement.value, ast.Call)
            and statement.value.args
        ):
            try:
                rows = dict(ast.literal_eval(statement.value.args[0]))
            except (ValueError, TypeError):
                continue
            for target in statement.targets:
                if isinstance(target, ast.Name):
                    tables[target.id] = rows
    return tables
