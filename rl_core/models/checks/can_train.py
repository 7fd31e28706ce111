"""Early check from the files next to a model's weights: whether it can be trained, on rows as long
as a recipe's, with its tokenizer. torch is not imported; properties of the weights themselves are
checked at load."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rl_core.errors import ModelError
from rl_core.models.checks.row_length import check_lengths
from rl_core.models.checks.shape import (
    CAUSAL,
    SEES,
    classes_of,
    known_types,
    named,
    read_config,
    read_object,
    transformers_version,
)
from rl_core.models.checks.weight_files import check_weight_files
from rl_core.models.model_path import check_path
from schemas.domains import ModelKind
from schemas.recipe import Recipe

DEQUANTISED = ("mxfp4", "fp8", "bitnet")
"""Quantised formats that transformers may dequantise on load; the load decides."""


def check_local_model(recipe: Recipe, models_dir: Path) -> None:
    """Run `check_model` if the model's config is on this machine; nothing is known about other
    models yet.

    Raises: ModelError.
    """
    if recipe.domain.traits.model is ModelKind.PIPELINE:
        return
    folder = Path(check_path(recipe.model.path, models_dir))
    config = read_config(folder)
    if config is None:
        return
    check_model(recipe, config, folder)
    if recipe.domain.traits.model is not ModelKind.UNIFIED:
        check_weight_files(folder, config, f"model.path {recipe.model.path}")


def check_model(recipe: Recipe, config: Mapping[str, object], folder: Path | None = None) -> None:
    """Check that a model can be trained as the recipe says.

    Args: config: the content of `config.json`. folder: folder of the tokenizer, if it is on this
    machine. Raises: ModelError.
    """
    where = f"model.path {recipe.model.path}"
    if (
        recipe.domain.traits.model is not ModelKind.UNIFIED
    ):  # their families have loaders of their own
        _check_kind(config, where)
    if recipe.model.attention == "flash_attention_2" and recipe.placement.device == "cpu":
        raise ModelError(
            "model.attention: flash_attention_2 runs on GPUs alone; with placement.device: cpu "
            "use sdpa"
        )
    check_lengths(recipe, config)
    if folder is not None:
        _check_tokenizer(named(config).get("vocab_size"), folder / "tokenizer.json", where)


def _check_kind(config: Mapping[str, object], where: str) -> None:
    kind = config.get("model_type")
    if config.get("is_encoder_decoder") is True:
        raise ModelError(
            f"{where}: {kind} is an encoder-decoder model; only decoder-only language models can "
            "be trained"
        )
    quantised = config.get("quantization_config")
    if isinstance(quantised, Mapping) and quantised.get("quant_method") not in DEQUANTISED:
        method = quantised.get("quant_method") or "unknown"
        raise ModelError(
            f"{where}: the checkpoint is quantised (quant_method {method}), and quantised "
            "weights cannot be trained; give the model it was made from"
        )
    if not isinstance(kind, str) or not known_types():
        return
    causal, sees = classes_of(CAUSAL), {kind for table in SEES for kind in classes_of(table)}
    if kind not in known_types() and kind not in causal and kind not in sees:
        raise ModelError(
            f"{where}: transformers {transformers_version()} does not know the model_type {kind!r}"
        )
    if causal and kind not in causal and kind not in sees:
        raise ModelError(
            f"{where}: {kind} is no language model that continues a text (transformers has no "
            "AutoModelForCausalLM for it); give a decoder-only model"
        )


def _check_tokenizer(num_rows: object, path: Path, where: str) -> None:
    """Check that words of a fast tokenizer have a row in the embedding.

    Raises: ModelError.
    """
    if not isinstance(num_rows, int) or not path.is_file():
        return
    words = read_object(path).get("model", {}).get("vocab", ())
    last = max(words.values(), default=-1) if isinstance(words, dict) else len(words) - 1
    if last >= num_rows:
        raise ModelError(too_many_words(where, last, num_rows))


def too_many_words(where: str, last: int, num_rows: int) -> str:
    """Return the message for a token id without a row in the embedding."""
    return (
        f"{where}: the tokenizer has token ids up to {last}, but the model's embedding has "
        f"{num_rows} rows (ids up to {num_rows - 1}); give a tokenizer that belongs to the "
        "model, or resize its embedding"
    )
