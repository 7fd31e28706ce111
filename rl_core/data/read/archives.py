"""Safe extraction of untrusted zip archives.

Members that are absolute, lead out of the folder (`..`), are links or devices, are encrypted, or
clash with another when case is folded are refused by name; number, total size and compression ratio
are bounded. The sizes that an archive declares are checked before a byte is written, and extraction
(`rl_core.data.read.unpack`), which uses all cores, never writes more than declared.
"""

import re
import stat
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pydantic import Field

from rl_core.data.prepare.workers import Advance, Runner
from rl_core.data.read.unpack import (
    DEFLATED,
    STORED,
    Extracted,
    Extraction,
    ImageCheck,
    Member,
    Packed,
)
from rl_core.errors import DataError
from schemas.sections.section import Section

RATIO_FROM_BYTES = 2**20
"""Size from which a member's compression ratio is checked."""
MAX_NAME_BYTES = 255
_SAYS_UTF8 = 0x800
_CONTROL = re.compile(r"[\x00-\x1f]")

Parts = tuple[str, ...]
"""Folders and name of a member."""
Place = Callable[[Parts], str | None]
"""Function that returns the path of a member below the target folder; None leaves it out."""


class ArchiveLimits(Section):
    """Bounds against zip bombs; exceeding one refuses the archive."""

    max_members: int = Field(default=10_000_000, ge=1)
    """Maximum number of files in one archive."""
    max_total_bytes: int = Field(default=2**40, ge=1)
    """Largest unpacked size of one archive in bytes."""
    max_ratio: float = Field(default=200.0, ge=1)
    """Largest ratio of unpacked to packed size, of the archive and of each member beyond a
    megabyte."""


@contextmanager
def open_archive(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open an archive for reading. Raises: DataError naming it when it is damaged or uses an
    unsupported feature."""
    if not path.is_file():
        raise DataError(f"{path}: no such archive")
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise DataError(
            f"{path}: a damaged or truncated zip archive ({error}); fetch it again"
        ) from error
    except NotImplementedError as error:
        raise DataError(f"{path}: {error}; pack it with deflate") from error


def list_members(path: Path, limits: ArchiveLimits, place: Place) -> list[Member]:
    """Return the files of an archive and their target paths, in the archive's order.

    Raises: DataError naming archive, member and reason for anything hostile, before anything is
    written.
    """
    with open_archive(path) as archive:
        infos = [info for info in archive.infolist() if not info.is_dir()]
        if len(infos) > limits.max_members:
            raise DataError(
                f"{path}: {len(infos)} members are more than max_members {limits.max_members}"
            )
        _refuse_bombs(path, infos, limits)
        members = []
        for info in infos:
            parts = _checked_parts(path, info)
            target = place(parts)
            if target is not None:
                packed = Packed(
                    info.header_offset, info.compress_size, info.compress_type, info.CRC
                )
                members.append(Member(member_name(info), target, info.file_size, packed))
    refuse_clashes(members, str(path))
    return members


def member_name(info: zipfile.ZipInfo) -> str:
    """Return the name of a member: UTF-8 where its bytes are, which some programs write without
    the flag that says so, else of the code page 437."""
    if info.filename.isascii() or info.flag_bits & _SAYS_UTF8:
        return info.filename
    try:
        return info.filename.encode("cp437").decode("utf-8")
    except UnicodeError:
        return info.filename


def folder_members(folder: Path, files: Sequence[Path], place: Place) -> list[Member]:
    """Return the same for files that lie unpacked below `folder`."""
    named = [(path, place(path.relative_to(folder).parts)) for path in files]
    members: list[Member] = []
    for path, target in named:
        if target is not None:
            members.append(Member(path.relative_to(folder).as_posix(), target, path.stat().st_size))
    return members


def refuse_clashes(members: Sequence[Member], where: str) -> None:
    """Refuse members with the same target path, also on a disk that folds case.

    Raises: DataError naming them.
    """
    taken: dict[str, Member] = {}
    folders: dict[str, Member] = {}
    for member in members:
        key = _folded(member.target)
        if key in taken:
            raise DataError(
                f"{where}: members {taken[key].name!r} and {member.name!r} clash: one would "
                "replace the other"
            )
        taken[key] = member
        parent = key.rpartition("/")[0]
        while parent and parent not in folders:
            folders[parent] = member
            parent = parent.rpartition("/")[0]
    for key in taken.keys() & folders.keys():
        raise DataError(
            f"{where}: members {taken[key].name!r} and {folders[key].name!r} clash: a file and a "
            "folder"
        )


def extract(
    path: Path,
    folder: Path,
    members: Sequence[Member],
    *,
    check: ImageCheck,
    num_workers: int,
    run: Runner,
    advance: Advance,
) -> Extracted:
    """Unpack `members` below `folder`, in `num_workers` shares.

    Args: path: the archive, or the folder with the unpacked members. advance: receives the number
    of files unpacked. Raises: DataError for a damaged archive; OSError.
    """
    for parent in sorted({member.target.rpartition("/")[0] for member in members}):
        (folder / parent).mkdir(parents=True, exist_ok=True)
    shares = _shares(members, num_workers)
    jobs = []
    for share in shares:
        jobs.append(Extraction(str(path.resolve()), str(folder), share, check))
    results: list[Extracted] = run("rl_core.data.read.unpack:unpack_share", jobs, advance)
    digests = {}
    for result in results:
        for target, digest in result.digests.items():
            digests[target] = digest
    return Extracted(digests, {k: v for result in results for k, v in result.bad_images.items()})


def _shares(members: Sequence[Member], num_shares: int) -> list[list[Member]]:
    """Split members into shares of adjacent ones with similar numbers of bytes; each file adds a
    cost of 16 KiB."""
    costs = [member.num_bytes + 16384 for member in members]
    bound, shares, spent = sum(costs) / max(1, num_shares), [[]], 0
    for member, cost in zip(members, costs, strict=True):
        if spent >= bound * len(shares) and len(shares) < num_shares:
            shares.append([])
        shares[-1].append(member)
        spent += cost
    return [share for share in shares if share]


def _refuse_bombs(path: Path, infos: Sequence[zipfile.ZipInfo], limits: ArchiveLimits) -> None:
    total = sum(info.file_size for info in infos)
    if total > limits.max_total_bytes:
        raise DataError(
            f"{path}: unpacks to {total} bytes, more than max_total_bytes {limits.max_total_bytes}"
        )
    for info in infos:
        if (
            info.file_size > RATIO_FROM_BYTES
            and info.file_size > limits.max_ratio * info.compress_size
        ):
            ratio = info.file_size / max(1, info.compress_size)
            raise DataError(
                f"{path}: member {info.filename!r} unpacks to {ratio:.0f} times its size, more "
                f"than max_ratio {limits.max_ratio:g}; raise archive.max_ratio if that is meant"
            )
    # Overlapping members hide a bomb whose members look harmless one by one.
    size = path.stat().st_size
    if total > RATIO_FROM_BYTES and total > limits.max_ratio * size:
        raise DataError(
            f"{path}: unpacks to {total / size:.0f} times its size, more than max_ratio "
            f"{limits.max_ratio:g}"
        )


def _checked_parts(path: Path, info: zipfile.ZipInfo) -> Parts:
    """Return the path of a member.

    Raises: DataError unless it is an ordinary file below the archive's root.
    """
    name = member_name(info).replace("\\", "/")
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    kind = stat.S_IFMT(info.external_attr >> 16)
    reason = None
    if name.startswith("/") or name[1:2] == ":":
        reason = "is an absolute path"
    elif ".." in parts:
        reason = "climbs out of the archive"
    elif kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        reason = "is a link" if kind == stat.S_IFLNK else "is not an ordinary file"
    elif info.flag_bits & 1:
        reason = "is encrypted"
    elif info.filename != info.orig_filename or _CONTROL.search(name) or not parts:
        reason = "has no usable name"
    elif len(name.encode()) > MAX_NAME_BYTES and any(
        len(part.encode()) > MAX_NAME_BYTES for part in parts
    ):
        reason = f"has a name of more than {MAX_NAME_BYTES} bytes"
    elif info.compress_type not in (STORED, DEFLATED):
        reason = (
            f"is packed by method {info.compress_type}, not by deflate ({DEFLATED}) or as it is "
            f"({STORED})"
        )
    if reason is not None:
        raise DataError(f"{path}: member {info.filename!r} {reason}; the archive is refused")
    return parts


def _folded(target: str) -> str:
    if target.isascii():
        return target.lower()
    return unicodedata.normalize("NFC", target).casefold()
