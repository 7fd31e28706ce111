"""UniRL prompt files: a text, and the media it refers to.

A row has `prompt` or `caption` (non-empty text), and optionally `prompt_id`, `metadata` (an object)
and `media` or `media_refs`, a list of `{modality, role, uri}`. Any other keys become `metadata`,
unless the row has a `metadata` of its own, which is then used unchanged. Embeddings are computed at
run time, so rows with precomputed embeddings are refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_core.errors import DataError, UnsupportedMediaError
from schemas.rows.contract import RowContract, SchemaName
from schemas.rows.media_checks import (
    SUPPORTED,
    MediaLimits,
    MediaRef,
    file_problems,
    resolve_uri,
    uri_problems,
)
from schemas.rows.messages import is_messages_text
from schemas.rows.problems import Problem, as_list, get

LEGACY_FIELDS = (
    "prompt_embed_path",
    "pooled_embed_path",
    "pooled_prompt_embeds_path",
    "text_ids_path",
    "text_ids",
    "prompt_embeds",
    "pooled_prompt_embeds",
)
"""Fields of precomputed embeddings from earlier formats; a row that has one is refused."""

KNOWN_FIELDS = ("prompt", "caption", "media", "media_refs", "metadata", "prompt_id")
UNSUPPORTED = "media of this kind is not implemented"
_REF_KEYS = frozenset({"modality", "role", "uri"})
_REFS = 'a list of {"modality": "image", "role": "condition", "uri": <path or URI>}'


@dataclass(frozen=True)
class MediaPrompt:
    """A media prompt in the form that training reads."""

    prompt: str
    prompt_id: str
    metadata: dict[str, object] = field(default_factory=dict)
    media_refs: tuple[MediaRef, ...] = ()


def media_contract(
    folder: Path | str | None = None, limits: MediaLimits | None = None, prompt_key: str = "prompt"
):
    """Return the contract of media prompt rows.

    Args: folder: folder of the dataset file, against which relative URIs resolve; None skips the
    check of the files behind URIs.
    """

    def extract(row: Mapping[str, object]) -> dict[str, object]:
        return {
            "prompt": get(row, prompt_key, "prompt", "caption"),
            "prompt_id": get(row, "prompt_id"),
            "metadata": get(row, "metadata"),
            "media_refs": get(row, "media_refs", "media"),
            "legacy": [name for name in LEGACY_FIELDS if name in row],
        }

    return RowContract(
        SchemaName.MEDIA,
        extract,
        {
            "prompt": _text_problems,
            "prompt_id": _id_problems,
            "metadata": _metadata_problems,
            "media_refs": lambda value: refs_problems(value, folder, limits or MediaLimits()),
            "legacy": _legacy_problems,
        },
    )


def media_prompt(
    row: Mapping[str, object],
    *,
    default_id: str,
    folder: Path | str,
    place: str,
    prompt_key: str = "prompt",
    opened: MediaLimits | None = None,
) -> MediaPrompt:
    """Return the media prompt of a row, with URIs resolved against `folder`.

    Args: opened: open the files behind URIs, within these limits; unset opens none.
    Raises: UnsupportedMediaError, a NotImplementedError, for media that no loader implements;
    DataError for any other problem.
    """
    contract = media_contract(folder if opened else None, opened, prompt_key)
    problems = contract.problems(row)
    if problems:
        first = problems[0]
        error = UnsupportedMediaError if first.reason == UNSUPPORTED else DataError
        raise error(first.at(place))
    metadata = get(row, "metadata")
    if metadata is None:
        metadata = {}
        for key, value in row.items():
            if key not in (*KNOWN_FIELDS, prompt_key):
                metadata[key] = value
    prompt_id = get(row, "prompt_id")
    return MediaPrompt(
        prompt=get(row, prompt_key, "prompt", "caption"),
        prompt_id=default_id if prompt_id is None else str(prompt_id),
        metadata=dict(metadata),
        media_refs=tuple(
            MediaRef(ref["modality"], ref["role"], resolve_uri(ref["uri"], folder))
            for ref in as_list(get(row, "media_refs", "media")) or []
        ),
    )


def refs_problems(value: object, folder: Path | str | None, limits: MediaLimits) -> list[Problem]:
    """Return every problem of a row's media references."""
    if value is None:
        return []
    refs = as_list(value)
    if refs is None or not all(isinstance(ref, Mapping) for ref in refs):
        return [Problem("media_refs", "not a list of media references", value, _REFS)]
    if len(refs) > 1:
        return [Problem("media_refs", UNSUPPORTED, value, "exactly one condition image per prompt")]
    problems: list[Problem] = []
    for i, ref in enumerate(refs):
        problems.extend(_ref_problems(f"media_refs[{i}]", ref, folder, limits))
    return problems


def _ref_problems(
    where: str, ref: Mapping[str, Any], folder: Path | str | None, limits: MediaLimits
) -> list[Problem]:
    pair = (ref.get("modality"), ref.get("role"))
    missing = [name for name in ("modality", "role", "uri") if ref.get(name) is None]
    if missing:
        return [Problem(where, f"missing {missing[0]}", ref, _REFS)]
    given = {key for key, value in ref.items() if value is not None}
    if unknown := sorted(given - _REF_KEYS):
        expected = ", ".join(sorted(_REF_KEYS))
        return [Problem(f"{where}.{unknown[0]}", "unknown key", ref[unknown[0]], expected)]
    if pair not in SUPPORTED:
        expected = "(modality='image', role='condition' or 'target')"
        return [Problem(where, UNSUPPORTED, f"(modality={pair[0]!r}, role={pair[1]!r})", expected)]
    problems = uri_problems(f"{where}.uri", ref["uri"])
    if problems or folder is None:
        return problems
    return file_problems(f"{where}.uri", resolve_uri(ref["uri"], folder), limits)


def _text_problems(value: object) -> list[Problem]:
    if value is None:
        return [Problem("prompt", "missing", value, "a text under prompt or caption")]
    if isinstance(value, str) and is_messages_text(value):
        expected = "a text; these are messages, kept as one"
        return [Problem("prompt", "messages as a text", value, expected)]
    good = isinstance(value, str) and value.strip()
    if good:
        return []
    return [Problem("prompt", "not a text", value, "a non-empty text")]


def _id_problems(value: object) -> list[Problem]:
    good = value is None or (
        isinstance(value, str | int) and not isinstance(value, bool) and value != ""
    )
    if good:
        return []
    return [Problem("prompt_id", "not an id", value, "a string or whole number")]


def _metadata_problems(value: object) -> list[Problem]:
    good = value is None or isinstance(value, Mapping)
    if good:
        return []
    return [Problem("metadata", "not an object", value, "an object")]


def _legacy_problems(names: Any) -> list[Problem]:
    expected = "no such field: embeddings are computed at run time"
    return [Problem(name, "precomputed embeddings are refused", name, expected) for name in names]
