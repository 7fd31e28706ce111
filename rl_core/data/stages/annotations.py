"""MMPR annotations: found by their names in the meta, checked row by row, and written without the
bad rows.

A good row is written as it was read, byte for byte.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any

from rl_core.data.prepare.workers import Advance
from rl_core.data.read.archives import ArchiveLimits, Parts, list_members, member_name, open_archive
from rl_core.data.read.files.json_stream import UnreadableJson, parse
from rl_core.data.read.files.text_files import check_text
from rl_core.data.read.raw_dir import content_files
from rl_core.data.stages.base import Tally, slug
from rl_core.errors import DataError
from schemas.rows.media_checks import unicode_forms
from schemas.rows.preference_rows import preference_contract, preference_values
from schemas.rows.problems import as_list

ROWS_SUFFIX = ".jsonl"


@dataclass(frozen=True)
class AnnotationSource:
    """A file of rows: on disk, or a member of an archive."""

    path: str
    member: str | None = None

    def __str__(self) -> str:
        if self.member:
            return f"{self.path}:{self.member}"
        return self.path


@dataclass(frozen=True)
class Subset:
    """One entry of the meta file, to check."""

    name: str
    source: AnnotationSource
    work: str
    """Folder that is being built, with the images already in it."""
    root: str
    """Image folder inside the cache."""
    target: str
    """Annotation file inside the cache."""
    preview_rows: int


@dataclass(frozen=True)
class Share:
    """Subsets that one worker checks."""

    subsets: Sequence[Subset]
    bad_images: Mapping[str, str]
    """Problem of each bad image of the cache, by its path there."""


@dataclass
class Judged:
    """Counts of a subset's checked and written rows."""

    name: str
    tally: Tally = field(default_factory=Tally)
    preview: list[dict[str, Any]] = field(default_factory=list)
    digest: str = ""


def find_annotations(
    input_dir: Path, wanted: Mapping[str, str], limits: ArchiveLimits | None = None
) -> dict[str, AnnotationSource]:
    """Return the file of each subset: the one whose path best matches the end of the meta's
    `annotation`.

    Args: wanted: path in the meta by subset. Raises: DataError when there is none, or two match
    equally well.
    """
    found: list[tuple[tuple[str, ...], AnnotationSource]] = []
    for path in content_files(input_dir):
        if path.suffix.lower() == ROWS_SUFFIX:
            found.append((path.relative_to(input_dir).parts, AnnotationSource(str(path.resolve()))))
        elif path.suffix.lower() == ".zip":
            for member in list_members(path, limits or ArchiveLimits(), _rows_only):
                source = AnnotationSource(str(path.resolve()), member.name)
                found.append((PurePosixPath(member.target).parts, source))
    by_end: dict[tuple[str, ...], list[AnnotationSource]] = {}
    for parts, source in found:
        for first in range(len(parts)):
            by_end.setdefault(parts[first:], []).append(source)
    return {name: _best(input_dir, name, path, by_end) for name, path in wanted.items()}


def name_annotations(wanted: Mapping[str, str]) -> dict[str, str]:
    """Return the file names inside the cache: the meta's own, or the subset's where two subsets
    share one.

    Args: wanted: path in the meta by subset. Raises: DataError when two subsets cannot be told
    apart.
    """
    own = {name: PurePosixPath(path.replace("\\", "/")).name for name, path in wanted.items()}
    folded = Counter(file.casefold() for file in own.values())
    names = {
        name: file if folded[file.casefold()] == 1 else re.sub(r"[^\w.-]+", "_", name) + ROWS_SUFFIX
        for name, file in own.items()
    }
    taken: dict[str, str] = {}
    for name, file in names.items():
        if file.casefold() in taken:
            raise DataError(
                f"subsets {taken[file.casefold()]!r} and {name!r} share the file {file}; rename "
                "one of them"
            )
        taken[file.casefold()] = name
    return names


def judge_subsets(share: Share, advance: Advance) -> list[Judged]:
    """Check and write several subsets, as one worker's job; those of an archive come together, so
    that it is opened once."""
    in_archives: dict[str, list[Subset]] = {}
    results = []
    for subset in share.subsets:
        if subset.source.member is not None:
            in_archives.setdefault(subset.source.path, []).append(subset)
            continue
        with Path(subset.source.path).open("rb") as lines:
            results.append(_judge(subset, lines, share.bad_images))
        advance(1)
    for path, subsets in in_archives.items():
        with open_archive(Path(path)) as archive:
            infos = {member_name(info): info for info in archive.infolist()}
            for subset in subsets:
                with archive.open(infos[subset.source.member or ""]) as lines:
                    results.append(_judge(subset, lines, share.bad_images))
                advance(1)
    return results


def _judge(subset: Subset, lines: IO[bytes], bad_images: Mapping[str, str]) -> Judged:
    judged, digest = Judged(subset.name), hashlib.sha256()
    contract, problem_of = preference_contract(), _image_judge(subset, bad_images)
    with (Path(subset.work) / subset.target).open("xb") as out:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            place = f"{subset.source}:{number}"
            try:
                row = _row_of(line)
            except (DataError, UnicodeDecodeError) as error:
                judged.tally.refuse("unreadable_line", place, str(error))
                continue
            if problems := contract.problems(row):
                judged.tally.refuse(slug(problems[0]), place, problems[0].at("").strip())
                continue
            if refusal := problem_of(row):
                judged.tally.refuse(refusal[0], place, f"field image: {refusal[1]}")
                continue
            written = line.strip() + b"\n"
            out.write(written)
            digest.update(written)
            judged.tally.keep()
            if len(judged.preview) < subset.preview_rows:
                judged.preview.append({"subset": subset.name, **row})
    if not judged.tally.kept:
        (Path(subset.work) / subset.target).unlink()
    judged.digest = digest.hexdigest()
    return judged


def _row_of(line: bytes) -> dict[str, Any]:
    text = line.decode("utf-8-sig")
    row = parse(text)
    if not isinstance(row, dict):
        raise UnreadableJson("the line is no object")
    check_text(text, row)
    return row


def _image_judge(
    subset: Subset, bad_images: Mapping[str, str]
) -> Callable[[Mapping[str, Any]], tuple[str, str] | None]:
    """Return a function that gives the reason why a row's images cannot be used, as a counter and a
    sentence."""
    work, seen = Path(subset.work), dict[str, bool]()

    def exists(path: str) -> bool:
        if path not in seen:
            seen[path] = (work / path).is_file()
        return seen[path]

    def judge(row: Mapping[str, object]) -> tuple[str, str] | None:
        value = preference_values(row)["image"]
        for image in [value] if isinstance(value, str) else as_list(value) or []:
            path = PurePosixPath(subset.root, image).as_posix()
            path = next((form for form in unicode_forms(path) if exists(form)), path)
            if ".." in PurePosixPath(image).parts or PurePosixPath(image).is_absolute():
                return "image_outside_cache", f"{image} leads out of {subset.root}"
            if not exists(path):
                return "missing_image_file", f"no file {path}; expected it among the images"
            if path in bad_images:
                return "unreadable_image", f"{path}: {bad_images[path]}"
        return None

    return judge


def _best(
    input_dir: Path,
    name: str,
    wanted: str,
    by_end: Mapping[tuple[str, ...], Sequence[AnnotationSource]],
) -> AnnotationSource:
    """Return the source whose path agrees with the longest end of the wanted one.

    Args: by_end: the sources by each end of their paths.
    """
    parts = PurePosixPath(wanted.replace("\\", "/")).parts
    ends = (by_end.get(parts[first:]) for first in range(len(parts)))
    fitting = next((sources for sources in ends if sources), None)
    if fitting is None:
        raise DataError(
            f"{input_dir}: subset {name!r}: no file {parts[-1] if parts else wanted}; expected "
            "its annotations"
        )
    if len(fitting) > 1:
        raise DataError(
            f"{input_dir}: subset {name!r}: {fitting[0]} and {fitting[1]} both fit {wanted!r}; "
            "rename one"
        )
    return fitting[0]


def _rows_only(parts: Parts) -> str | None:
    if parts[-1].lower().endswith(ROWS_SUFFIX) and parts[0] != "__MACOSX":
        return "/".join(parts)
    return None
