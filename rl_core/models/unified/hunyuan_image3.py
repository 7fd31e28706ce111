"""HunyuanImage-3.0 (arXiv 2509.23951): one mixture of experts of 80 billion parameters writes a
plan in words, and denoises the image's latents, which follow in the same sequence.

Its classes are Python code that is stored with the weights. That code is written for transformers
4.57, whose static cache it extends, while this project needs 5. So a folder is recognised, its code
is imported if the recipe allows it, and the error says what is missing; no stage is connected to
it, and none of it has been run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from rl_core.errors import ModelError
from rl_core.models.unified.base import UnifiedFamily

if TYPE_CHECKING:
    from schemas.recipe import ModelConfig

WRITTEN_FOR = "4.57.1"
"""Version of transformers that its `requirements.txt` pins."""
AUTO_CLASS = "AutoModelForCausalLM"
CALLED = ("load_tokenizer", "prepare_model_inputs", "forward")
"""Methods that sampling and training would call: the last takes `mode`, `gen_text` or
`gen_image`."""


class HunyuanImage3(UnifiedFamily):
    """HunyuanImage-3.0, which is recognised, and refused with the reason."""

    name: ClassVar[str] = "hunyuan_image3"
    pipelines: ClassVar[tuple[str, ...]] = ("HunyuanImage3ForCausalMM",)
    writer: ClassVar[str] = "model"
    tokenizer_folder: ClassVar[str] = "."

    @classmethod
    def check(cls, source: str, config: ModelConfig) -> None:
        """Refuse the folder; without consent, before any of its code runs.

        Raises: ModelError in any case.
        """
        where = f"model.path {config.path}"
        if not config.trust_remote_code:
            raise ModelError(
                f"{where}: HunyuanImage-3.0 is Python code that lies beside its weights; read "
                "it, and set model.trust_remote_code: true to have it run"
            )
        if "." in Path(source).name:
            raise ModelError(
                f"{where}: code cannot be imported from a folder with a dot in its name; call it "
                f"{Path(source).name.replace('.', '-')}"
            )
        found, installed = _remote_class(Path(source), where), _installed()
        raise ModelError(
            f"{where}: {found.__name__} can be imported, but cannot be trained: it is written "
            f"for transformers {WRITTEN_FOR} (installed is {installed}), and no stage is wired "
            "to it; see docs/unified.md"
        )


def _remote_class(folder: Path, where: str) -> type:
    """Return the model's class; runs the folder's code. Raises: ModelError when it does not exist,
    or cannot be imported."""
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    reference = (
        json.loads((folder / "config.json").read_text(encoding="utf-8"))
        .get("auto_map", {})
        .get(AUTO_CLASS)
    )
    if reference is None:
        raise ModelError(
            f"{where}: config.json names no {AUTO_CLASS} in auto_map; is the folder complete?"
        )
    try:
        found = get_class_from_dynamic_module(reference, str(folder), local_files_only=True)
    except (ImportError, OSError, AttributeError) as error:
        raise ModelError(
            f"{where}: its code cannot be imported: {str(error).strip()}; it needs what its "
            f"requirements.txt names, transformers {WRITTEN_FOR} (installed is {_installed()}) "
            "among them"
        ) from error
    absent = [name for name in CALLED if not hasattr(found, name)]
    if absent:
        raise ModelError(
            f"{where}: {found.__name__} has no {', '.join(absent)}; this is not the published code"
        )
    return found


def _installed() -> str:
    from importlib.metadata import version

    return version("transformers")
