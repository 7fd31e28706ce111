"""Resolution of a recipe's model path to a folder or hub id that transformers can load."""

import hashlib
from pathlib import Path
from typing import Any

from rl_core.algorithms.distillation import teachers_of
from rl_core.algorithms.teacher import REGISTERED
from rl_core.builtin import embedded
from rl_core.data.prepare.fingerprint import fingerprint
from rl_core.errors import ModelError
from rl_core.models.checks.shape import read_config
from rl_core.rewards.resolve import resolve_scorers
from rl_core.runtime.hub_access import hub_problem
from rl_core.runtime.user_paths import user_path
from schemas.recipe import Recipe

PIPELINE_INDEX = "model_index.json"
"""File that identifies a folder as a diffusers pipeline, whose parts have separate folders."""
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "chat_template.json"),
    *("vocab.json", "merges.txt", "spiece.model"),
)


def locate(path: str, models_dir: Path) -> str:
    """Return a local folder (embedded models are made on first use) or a hub id. Raises:
    ModelError."""
    if path.startswith(embedded.PREFIX):
        return str(embedded.materialise(path.removeprefix(embedded.PREFIX), models_dir))
    return check_path(path, models_dir)


def check_path(path: str, models_dir: Path, key: str = "model.path") -> str:
    """Check a path without making anything. Raises: ModelError when a local folder is not a model.

    Args: key: key of the recipe, for the message.
    """
    if path.startswith(embedded.PREFIX):
        return str(embedded.embedded_folder(path.removeprefix(embedded.PREFIX), models_dir))
    folder = user_path(path)
    if folder.is_dir():
        if not is_model(folder):
            raise ModelError(
                f"{key} {path}: the folder has neither config.json nor {PIPELINE_INDEX}; give a "
                "folder written by save_pretrained"
            )
        return str(folder)
    if path.startswith((".", "/", "~")) or path.count("/") > 1:
        raise ModelError(f"{key} {path}: no such folder")
    return path


def check_can_be_fetched(path: str, models_dir: Path, key: str = "model.path") -> None:
    """Check that a model is on this machine, or that the hub answers. Raises: ModelError.

    Otherwise a mistyped folder would be asked for, with many retries, by every worker.
    """
    source = check_path(path, models_dir, key)
    if path.startswith(embedded.PREFIX) or Path(source).is_dir():
        return
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    name, _, revision = source.partition("@")
    try:
        cached = [
            try_to_load_from_cache(name, file, revision=revision or None)
            for file in ("config.json", PIPELINE_INDEX)
        ]
    except HFValidationError as error:
        raise ModelError(f"{key} {path}: no such folder, and no name of the hub") from error
    if any(isinstance(file, str) for file in cached):
        return
    if (problem := hub_problem()) is not None:
        raise ModelError(f"{key} {path}: no such folder here, and {problem}")


def check_models(recipe: Recipe, models_dir: Path) -> None:
    """Check that every model that a recipe trains, is taught by or asks as a judge is on this
    machine, or that the hub answers. Raises: ModelError."""
    check_can_be_fetched(recipe.model.path, models_dir)
    if recipe.tracks:
        path = recipe.tracks.images.model.path
        check_can_be_fetched(path, models_dir, "tracks.images.model.path")
    for key, teacher in teachers_of(recipe).items():
        if teacher.path is not None and not teacher.path.startswith(REGISTERED):
            check_can_be_fetched(teacher.path, models_dir, f"algorithm.{key}.path")
    for key, _, config in resolve_scorers(recipe.rewards):
        for path in config.language_models:
            check_can_be_fetched(path, models_dir, f"rewards: {key}: model")


def is_model(folder: Path) -> bool:
    """Return True if a folder can be a recipe's `model.path`; one of adapters alone cannot."""
    return any((folder / name).is_file() for name in ("config.json", PIPELINE_INDEX))


def tokenizer_identity(path: str, models_dir: Path) -> str:
    """Return the identity of a model's tokenizer in a run hash: its path, and for a local folder
    its files' content."""
    folder = Path(check_path(path, models_dir))
    if path.startswith(embedded.PREFIX):
        return embedded.PREFIX + folder.name
    if not folder.is_dir():
        return path
    digest = hashlib.sha256()
    for part in (folder, *sorted(folder.glob("tokenizer*/")), *sorted(folder.glob("processor*/"))):
        for name in TOKENIZER_FILES:
            if (part / name).is_file():
                digest.update((part / name).read_bytes())
    return f"{path} ({digest.hexdigest()[:16]})"


def model_identity(source: str, memo_dir: Path) -> str:
    """Return the identity of a located model's weights in a run hash: its hub id, or the content of
    its folder's files."""
    folder = Path(source)
    if not folder.is_dir():
        return source
    parts = [
        folder,
        *(
            path.parent
            for path in folder.glob("*/config.json")
            if (folder / PIPELINE_INDEX).is_file()
        ),
    ]
    files = sorted(
        path
        for part in parts
        for pattern in ("config.json", "*.safetensors", "*.bin")
        for path in part.glob(pattern)
    )
    digests = "".join(fingerprint(path, memo_dir).sha256 for path in files if path.is_file())
    return hashlib.sha256(digests.encode()).hexdigest()


def model_shape(path: str, models_dir: Path) -> dict[str, Any] | None:
    """Return the `config.json` of a local model, or None if it is not on this machine (yet).

    For a multimodal model, return that of its language model.
    """
    folder = Path(check_path(path, models_dir))
    shape = read_config(folder)
    if shape is None or "text_config" not in shape or "hidden_size" in shape:
        return shape
    return _text_shape(folder)


def _text_shape(folder: Path) -> dict[str, Any]:
    """Return the config with the defaults of its class, which files leave out (Gemma 3 its heads
    and its vocabulary)."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder)
    text = config.get_text_config()
    # Whether the head is tied may stand with the whole or with the part.
    tied = bool(
        getattr(config, "tie_word_embeddings", False) or getattr(text, "tie_word_embeddings", False)
    )
    return text.to_dict() | {"tie_word_embeddings": tied}
