"""MMPR-Tiny rows in the form that training reads, and the loader of the cache that `vision`
publishes.

Preparation counts rows with the same function that the loader reads them with, so the two cannot
disagree. A row has `prompt` (content, role), `images[].{bytes, path}` and
`reward_model.ground_truth`. The question is the first user message; there is one image.
"""

import json
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from rl_core.data.read.files.parquet_files import read_parquet
from rl_core.data.store.publish import files_below, open_published
from rl_core.errors import DataError
from schemas.rows.media_checks import load_image, unicode_forms
from schemas.rows.problems import as_list, get

if TYPE_CHECKING:
    from PIL.Image import Image

PARQUET = "mmpr_tiny.parquet"
IMAGES = "MMPR-Tiny/images"
SUMMARY = "prepare_mmpr_tiny_for_vision_rl_summary.json"
SENTINEL = ".mmpr_ready"


class Refusal(StrEnum):
    """Reason why a row cannot be used; each is a counter of the summary."""

    MISSING_QUESTION = "missing_question"
    """There is no user message with text."""
    MISSING_ANSWER = "missing_answer"
    """There is no `reward_model.ground_truth`."""
    INVALID_IMAGE_FIELD = "invalid_image_field"
    """`images` is not a list of `{bytes, path}`, or a path leads out of the cache."""
    NOT_ONE_IMAGE = "not_one_image"
    """The row has no image, or more than one."""
    MISSING_IMAGE_FILE = "missing_image_file"
    """There is no file at the path."""
    UNREADABLE_IMAGE = "unreadable_image"
    """The file exists but is not an image."""
    UNREADABLE_ROW = "unreadable_row"
    """The row itself cannot be decoded."""


class RowRefused(DataError):
    """Error of a row that cannot be used, with its counter."""

    def __init__(self, reason: Refusal, message: str) -> None:
        super().__init__(reason, message)
        self.reason = reason
        self.message = message

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True)
class VisionRow:
    """A question about an image, and its answer."""

    question: str
    answer: str
    image: str | bytes
    """Path inside the cache, or the bytes of the image."""
    row: int
    """Row number in the Parquet file, from 1."""


def vision_row(row: Mapping[str, object], number: int) -> VisionRow:
    """Return the question, answer and image of an MMPR-Tiny row; no file is opened. Raises:
    RowRefused."""
    messages = []
    for message in as_list(row.get("prompt")) or []:
        if isinstance(message, Mapping):
            messages.append(message)
    question = next((_text(m.get("content")) for m in messages if m.get("role") == "user"), "")
    if not question:
        raise RowRefused(
            Refusal.MISSING_QUESTION, "field prompt: no user message with text; expected a question"
        )
    reward = row.get("reward_model")
    answer = get(reward, "ground_truth") if isinstance(reward, Mapping) else None
    if answer is None or not str(answer).strip():
        raise RowRefused(
            Refusal.MISSING_ANSWER, "field reward_model: missing ground_truth; expected the answer"
        )
    return VisionRow(question, str(answer), _image_of(row), number)


def cache_path(path: str) -> str:
    """Convert an upstream image path to a path inside the cache: the part after its first `images`
    folder, or else all of it.

    Raises: RowRefused when the path leads out of the cache.
    """
    parts = []
    for part in path.replace("\\", "/").split("/"):
        if part not in ("", "."):
            parts.append(part)
    if ".." in parts or not parts:
        expected = "a path below images/"
        raise RowRefused(
            Refusal.INVALID_IMAGE_FIELD,
            f"field images: path {path!r} climbs or is empty; expected {expected}",
        )
    below = parts[parts.index("images") + 1 :] if "images" in parts else parts
    return "/".join((IMAGES, *below))


class VisionDataset:
    """Rows of a published `vision` cache, in file order; images are opened on access.

    Args: root: the cache. run_hash: required run hash of the preparation. Raises: DataError when
    the cache is not complete.
    """

    def __init__(self, root: Path | str, run_hash: str | None = None) -> None:
        self.root = Path(root).expanduser()
        self.sentinel = open_published(self.root, SENTINEL, run_hash)
        self.rows = list(usable_rows(self.root))
        if len(self.rows) != self.sentinel.counts["kept"]:
            raise DataError(
                f"{root}: holds {len(self.rows)} usable rows, its sentinel "
                f"{self.sentinel.counts['kept']}"
            )

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> VisionRow:
        return self.rows[index]

    def __iter__(self) -> Iterator[VisionRow]:
        return iter(self.rows)

    def image(self, row: VisionRow) -> "Image":
        """Return the row's image, decoded to RGB. Raises: DataError naming the row."""
        try:
            return load_image(
                row.image if isinstance(row.image, bytes) else str(self.root / row.image)
            )
        except DataError as error:
            raise DataError(f"{self.root / PARQUET}:{row.row} field images: {error}") from error


def usable_rows(root: Path) -> Iterator[VisionRow]:
    """Yield the usable rows of a cache's Parquet file, as counted by preparation."""
    bad_images = json.loads((root / SUMMARY).read_text(encoding="utf-8"))["bad_images"]
    for _, found in judged_rows(root, bad_images):
        if isinstance(found, VisionRow):
            yield found


def judged_rows(
    root: Path, bad_images: Mapping[str, str]
) -> Iterator[tuple[int, VisionRow | RowRefused]]:
    """Yield every row's number, and the row or the reason why it cannot be used.

    Args: bad_images: problem of each bad image file by its path inside the cache, as found while it
    was unpacked.
    """
    unreadable: list[tuple[int, RowRefused]] = []

    def on_bad_row(number: int, error: DataError) -> None:
        unreadable.append((number, RowRefused(Refusal.UNREADABLE_ROW, str(error))))

    files = frozenset(files_below(root))
    for raw in read_parquet(root / PARQUET, "prompt", on_bad_row):
        yield from unreadable
        unreadable.clear()
        try:
            row = vision_row(raw.value, raw.number)
            if isinstance(row.image, str):
                forms = (form for form in unicode_forms(row.image) if form in files)
                row = replace(row, image=next(forms, row.image))
            _check_image(row, files, bad_images)
            yield raw.number, row
        except RowRefused as refused:
            yield raw.number, refused
    yield from unreadable


def _check_image(row: VisionRow, files: Container[str], bad_images: Mapping[str, str]) -> None:
    if isinstance(row.image, bytes):
        from rl_core.data.check.images import image_problem

        problem = image_problem(row.image, decode=False)
    elif row.image not in files:
        raise RowRefused(
            Refusal.MISSING_IMAGE_FILE,
            f"field images: no file {row.image}; expected it in images.zip",
        )
    else:
        problem = bad_images.get(row.image)
    if problem is not None:
        raise RowRefused(Refusal.UNREADABLE_IMAGE, f"field images: {_name(row.image)}: {problem}")


def _image_of(row: Mapping[str, object]) -> str | bytes:
    images = as_list(row.get("images"))
    if images is None:
        raise RowRefused(
            Refusal.INVALID_IMAGE_FIELD, "field images: not a list; expected one {bytes, path}"
        )
    if len(images) != 1:
        raise RowRefused(Refusal.NOT_ONE_IMAGE, f"field images: {len(images)} images; expected one")
    image = images[0]
    content = image.get("bytes") if isinstance(image, Mapping) else None
    if isinstance(content, bytes) and content:
        return content
    path = image.get("path") if isinstance(image, Mapping) else image
    if not isinstance(path, str) or not path.strip():
        raise RowRefused(Refusal.INVALID_IMAGE_FIELD, "field images[0]: neither bytes nor a path")
    return cache_path(path.strip())


def _text(content: object) -> str:
    """Return the text of a message: a string, or the text parts of a list."""
    if isinstance(content, str):
        return content.strip()
    parts = []
    for part in as_list(content) or []:
        parts.append(part if isinstance(part, str) else get(part, "text", "content"))
    return "\n".join(part.strip() for part in parts if isinstance(part, str) and part.strip())


def _name(image: str | bytes) -> str:
    if isinstance(image, str):
        return image
    return f"{len(image)} bytes in the row"
