"""Preference rows: a question with a better and a worse answer, and images (a path or a list).

The question is a text, or a conversation that ends with the user's message. The shapes in which
other systems write pairs are read by `schemas.rows.preference_shapes`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_core.errors import DataError
from schemas.rows.contract import FieldRule, RowContract, SchemaName
from schemas.rows.media_checks import MediaLimits, file_problems, resolve_uri, uri_problems
from schemas.rows.preference_shapes import conversation_problems, pair_of
from schemas.rows.problems import Problem, as_list, get


@dataclass(frozen=True)
class PreferencePair:
    """A preference row in the form that training reads."""

    images: tuple[str, ...]
    """Resolved URIs of the images."""
    question: str | list[dict[str, object]]
    """A text, or the messages of a conversation."""
    chosen: str
    rejected: str
    margin: float = 0.0
    """Lead that a reward model's score of the chosen answer is to have."""

    @property
    def prompt(self) -> list[dict[str, object]]:
        """The question as chat messages."""
        if isinstance(self.question, str):
            return [{"role": "user", "content": self.question}]
        return [dict(message) for message in self.question]


def preference_contract(
    folder: Path | str | None = None, limits: MediaLimits | None = None, *, needs_image: bool = True
) -> RowContract:
    """Return the contract of preference rows.

    Args: folder: root folder of the images, against which relative paths resolve; None checks no
    file. needs_image: refuse text-only rows, which have no `image`.
    """

    def text(field: str) -> FieldRule:
        return lambda value: _text_problems(field, value)

    fields = {
        "image": lambda value: (
            []
            if value is None and not needs_image
            else _image_problems(value, folder, limits or MediaLimits())
        ),
        "question": _question_problems,
        "chosen": text("chosen"),
        "rejected": text("rejected"),
        "margin": _margin_problems,
    }
    return RowContract(SchemaName.PREFERENCE, preference_values, fields, _answers_differ)


def preference_values(row: Mapping[str, object]) -> dict[str, Any]:
    """Return the fields of a row, whatever system wrote it."""
    return {"image": get(row, "image"), "margin": get(row, "margin"), **pair_of(row)}


def preference_pair(
    row: Mapping[str, object],
    *,
    folder: Path | str,
    place: str,
    needs_image: bool = True,
    opens_images: bool = False,
) -> PreferencePair:
    """Return the pair of a row, with image paths resolved against `folder`.

    Args: opens_images: refuse an image that is missing or cannot be decoded.
    Raises: DataError naming `place`.
    """
    contract = preference_contract(folder if opens_images else None, needs_image=needs_image)
    problems = contract.problems(row)
    if problems:
        raise DataError(problems[0].at(place))
    values = preference_values(row)
    if isinstance(values["image"], str):
        images = [values["image"]]
    else:
        images = as_list(values["image"]) or []
    uris = tuple(resolve_uri(uri, folder) for uri in images)
    pair = uris, values["question"], values["chosen"], values["rejected"]
    return PreferencePair(*pair, margin=float(values["margin"] or 0.0))


def _image_problems(value: object, folder: Path | str | None, limits: MediaLimits) -> list[Problem]:
    if value is None:
        return [Problem("image", "missing", value, "a path or a list of paths")]
    images = [value] if isinstance(value, str) else as_list(value)
    if not images:
        return [Problem("image", "not an image path", value, "a path or a non-empty list of paths")]
    problems = []
    for i, uri in enumerate(images):
        field = "image" if isinstance(value, str) else f"image[{i}]"
        found = uri_problems(field, uri)
        if not found and folder is not None:
            found = file_problems(field, resolve_uri(uri, folder), limits)
        problems += found
    return problems


def _margin_problems(value: object) -> list[Problem]:
    if value is None:
        return []
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and 0 <= float(str(value)) < math.inf):
        return [Problem("margin", "not a margin", value, "a number of 0 or more")]
    return []


def _question_problems(value: object) -> list[Problem]:
    if isinstance(value, list) and value:
        return conversation_problems(value)
    return _text_problems("question", value)


def _text_problems(field: str, value: object) -> list[Problem]:
    if isinstance(value, Problem):
        # What is wrong with a whole row is in all three places, and said once.
        own = value.field if value.field in ("chosen", "rejected") else "question"
        return [value] if own == field else []
    if value is None:
        return [Problem(field, "missing", value, "a non-empty text")]
    good = isinstance(value, str) and value.strip()
    if good:
        return []
    return [Problem(field, "not a text", value, "a non-empty text")]


def _answers_differ(row: Mapping[str, object]) -> list[Problem]:
    chosen, rejected = row["chosen"], row["rejected"]
    if (
        not isinstance(chosen, str)
        or not isinstance(rejected, str)
        or chosen.strip() != rejected.strip()
    ):
        return []
    return [Problem("rejected", "chosen and rejected are equal", rejected, "two different answers")]
