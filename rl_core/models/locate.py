"""Resolution of a recipe's model path to a folder or hub id that transformers can load."""

import hashlib
from pathlib import Path
from typing import Any

from rl_core.algorithms.distillation import teachers_of
from rl_core.algorithms.teacher import REGISTERED
from rl_core.builtin import embedded
from rl_core.data.prepare.fingerprint import fingerprint
from rl_core.envs.seats import models_of
from rl_core.errors import ModelError
from rl_core.models.adapters.exported import adapter_folder
from rl_core.models.checks.shape import read_config
from rl_core.models.model_path import PIPELINE_INDEX, check_path
from rl_core.rewards.resolve import resolve_scorers
from rl_core.runtime.hub_access import hub_problem
from schemas.domains import ModelKind
from schemas.recipe import Recipe

TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "chat_template.json"),
    *("vocab.json", "merges.txt", "spiece.model"),
)


def locate(path: str, models_dir: Path, *, merged: bool = True) -> str:
    """Return a local folder (embedded models are made on first use) or a hub id.

    Args: merged: for a folder of adapters alone, return the whole model that they give, which is
    written on first use; False returns their base. Raises: ModelError.
    """
    if path.startswith(embedded.PREFIX):
        return str(embedded.materialise(path.removeprefix(embedded.PREFIX), models_dir))
    base = check_path(path, models_dir)
    adapters = adapter_folder(path)
    if adapters is None or not merged:
        return base
    # Here, since it imports torch.
    from rl_core.models.adapters.merged_folder import merged_folder

    return str(merged_folder(adapters, base, models_dir))


def whole_weights(path: str, models_dir: Path) -> str:
    """Return a `model.path` of a whole model: the path itself, or for a folder of adapters alone
    the model that they give, which is written on first use. Raises: ModelError."""
    if adapter_folder(path) is None:
        return path
    return locate(path, models_dir)


def locate_start(recipe: Recipe, models_dir: Path) -> str:
    """Return the model that a recipe's training starts from; with `lora`, adapters alone stand for
    their base, over which the model's bundle finds them. Raises: ModelError."""
    check_start(recipe)
    return locate(recipe.model.path, models_dir, merged=recipe.lora is None)


def making_notes(recipe: Recipe, models_dir: Path) -> list[str]:
    """Return a sentence for each embedded model that the recipe names, as its start, teacher, judge
    or anything else, and that has yet to be made."""
    names = sorted(_embedded_in(recipe.model_dump(mode="json")))
    notes = (embedded.making_note(name, models_dir) for name in names)
    return [note for note in notes if note is not None]


def _embedded_in(value: object) -> set[str]:
    """Return the names of the embedded models in a part of a recipe."""
    if isinstance(value, str):
        name = value.removeprefix(embedded.PREFIX)
        return {name} if name != value and name in embedded.embedded_names() else set()
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return set().union(*map(_embedded_in, parts))


def check_start(recipe: Recipe) -> None:
    """Check that a recipe can start from a folder of adapters, if it names one. Raises:
    ModelError."""
    adapters = adapter_folder(recipe.model.path)
    if adapters is None:
        return
    if recipe.domain.traits.model not in (ModelKind.TEXT, ModelKind.SEEING):
        raise ModelError(
            f"model.path {recipe.model.path}: adapters alone, and domain {recipe.domain} starts "
            "from whole models; name a folder that save_pretrained wrote (lora.export: merged)"
        )
    if recipe.lora is not None:
        adapters.check_continues(recipe.lora)


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
        cached = []
        for file in ("config.json", PIPELINE_INDEX):
            cached.append(try_to_load_from_cache(name, file, revision=revision or None))
    except HFValidationError as error:
        raise ModelError(f"{key} {path}: no such folder, and no name of the hub") from error
    if any(isinstance(file, str) for file in cached):
        return
    if (problem := hub_problem()) is not None:
        raise ModelError(f"{key} {path}: no such folder here, and {problem}")


def check_models(recipe: Recipe, models_dir: Path) -> None:
    """Check that every model that a recipe trains, is taught by, asks as a judge or plays against
    is on this machine, or that the hub answers. Raises: ModelError."""
    check_can_be_fetched(recipe.model.path, models_dir)
    check_start(recipe)
    if recipe.tracks:
        path = recipe.tracks.images.model.path
        check_can_be_fetched(path, models_dir, "tracks.images.model.path")
    for key, teacher in teachers_of(recipe).items():
        if teacher.path is not None and not teacher.path.startswith(REGISTERED):
            check_can_be_fetched(teacher.path, models_dir, f"algorithm.{key}.path")
    for key, path in models_of(recipe.environments).items():
        if not path.startswith(REGISTERED):
            check_can_be_fetched(path, models_dir, key)
    for key, _, config in resolve_scorers(recipe.rewards):
        for path in config.language_models:
            if path.startswith(REGISTERED):
                continue  # found when the run is opened
            check_can_be_fetched(path, models_dir, f"rewards: {key}: model")


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
    parts = [folder]
    if (folder / PIPELINE_INDEX).is_file():
        parts.extend(path.parent for path in folder.glob("*/config.json"))
    files: list[Path] = []
    for part in parts:
        for pattern in ("config.json", "*.safetensors", "*.bin"):
            files.extend(part.glob(pattern))
    files.sort()
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
