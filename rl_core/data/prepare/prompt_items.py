"""Conversion of a row to the item that training reads: `{"prompt", "env_class", "env_extras",
"uid"}`."""

import hashlib
import json
from collections.abc import Mapping
from datetime import date, time
from decimal import Decimal
from pathlib import Path
from typing import Any

from rl_core.data.prepare.items import PlayedItem, PromptItem
from rl_core.data.read.row_images import image_identity, placed_images
from rl_core.data.store.key_table import KeyTable
from rl_core.errors import DataError
from schemas.rows.problems import as_list, is_missing
from schemas.rows.prompt_rows import reward_spec_of


class ItemMaker:
    """Converts the rows of one split to items, numbering identical rows.

    A `uid` is a hash of prompt, environment, reward specification and images as written, plus the
    row's index among identical ones, so it does not change with order, filter, tokenizer or folder.

    Args: has_answers: rows have a `completion`, which is part of the `uid`, and need no
    environment.
    """

    def __init__(
        self,
        *,
        env_class_key: str = "env_class",
        default_env_class: str | None = None,
        has_answers: bool = False,
    ) -> None:
        self.has_answers = has_answers
        self.env_class_key = env_class_key
        self.default_env_class = default_env_class
        self._seen = KeyTable()

    def __call__(self, row: Mapping[str, object], place: str, file: Path | str = ".") -> PromptItem:
        """Return the item of a row.

        Args: file: file to which the paths of its images are relative.
        Raises: DataError, naming `place`, when prompt or environment is missing, or an image is.
        """
        prompt, env_class = as_list(row.get("prompt")), row.get(self.env_class_key)
        extras = env_extras(row, self.env_class_key)
        env_class = self.default_env_class if is_missing(env_class) else env_class
        if not prompt or not all(isinstance(message, Mapping) for message in prompt):
            raise DataError(
                f"{place} field prompt: missing, or not a list of messages with role and content"
            )
        if env_class is None and not self.has_answers:
            expected = "the name of an environment, or data.default_env_class in the recipe"
            raise DataError(f"{place} field {self.env_class_key}: missing; expected {expected}")
        identity = [prompt, env_class, reward_spec_of(extras)]
        if self.has_answers:
            identity.append(extras.get("completion"))
        if images := as_list(extras.get("images")):
            identity.append([image_identity(image) for image in images])
            extras["images"] = placed_images(images, file, place)
        digest = _digest(identity, place)
        ordinal = self._seen.get(int(digest, 16)) or 0
        self._seen[int(digest, 16)] = ordinal + 1
        uid = f"{digest}-{ordinal}"
        if env_class is None:
            return {"prompt": prompt, "env_extras": extras, "uid": uid}
        played: PlayedItem = {
            "prompt": prompt,
            "env_class": str(env_class),
            "env_extras": extras,
            "uid": uid,
        }
        return played


def env_extras(row: Mapping[str, object], env_class_key: str = "env_class") -> dict[str, object]:
    """Return what an environment gets of a row: all but the prompt and the environment's name."""
    extras = {}
    for key, value in row.items():
        if key not in ("prompt", env_class_key):
            extras[key] = value
    if is_missing(extras.get("reward_spec")) and "reward_model" in extras:
        extras["reward_spec"] = extras.pop("reward_model")
    return extras


def to_json(value: object, place: str) -> str:
    """Return `value` as canonical JSON. Raises: DataError, naming `place`, for values that JSON
    cannot hold, such as bytes."""
    try:
        return json.dumps(value, ensure_ascii=False, sort_keys=True, default=_plain)
    except TypeError as error:
        raise DataError(
            f"{place}: {error}; a prompt row holds strings, numbers, lists and objects only"
        ) from error


def _digest(parts: list[object], place: str) -> str:
    return hashlib.sha256(to_json(parts, place).encode()).hexdigest()[:16]


def _plain(value: Any) -> object:
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a value of type {type(value).__name__} cannot be kept")
