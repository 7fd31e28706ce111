"""Unpacking of a share of an archive in one worker: one pass over each member for writing, digest
and image check.

The archive's directory was read and checked before (`rl_core.data.read.archives`): each member has
the location of its bytes, so a worker need not parse the directory again. The declared sizes are
enforced: no further byte is written, and size and checksum must be right. Source: the ZIP format,
PKWARE APPNOTE 6.3 section 4.3.
"""

import hashlib
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from rl_core.data.prepare.workers import Advance
from rl_core.errors import DataError

CHUNK_BYTES = 1 << 20
REPORT_EVERY = 256
STORED, DEFLATED = 0, 8
"""Supported compression methods."""

_HEADER = Struct("<4s22xHH")
"""A member's own header: signature, length of the name, length of the extra field after the
name."""
_SIGNATURE = b"PK\x03\x04"
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class ImageCheck(StrEnum):
    """Check of images while they are unpacked."""

    NONE = "none"
    """No check beyond the archive's checksum."""
    STRUCTURE = "structure"
    """Header, size, checksums where the format has them, and the end of the file; nothing is
    decoded."""
    DECODE = "decode"
    """Decode every pixel, which takes about five times as long as unpacking."""


class Packed(NamedTuple):
    """Location of a member in its archive, and its compression."""

    offset: int
    """Offset of its header in bytes."""
    num_bytes: int
    """Packed size in bytes."""
    method: int
    checksum: int
    """CRC-32 of the content."""


class Member(NamedTuple):
    """A file of an archive, or a loose one, and its target path."""

    name: str
    target: str
    num_bytes: int
    packed: Packed | None = None
    """Location in the archive; None for a loose file."""


@dataclass(frozen=True)
class Extraction:
    """Job of one worker: a share of an archive, or of a folder of loose files."""

    source: str
    folder: str
    members: list[Member]
    check: ImageCheck


@dataclass(frozen=True)
class Extracted:
    """Result of unpacking an archive."""

    digests: dict[str, str]
    """sha256 of each file by its path below the folder."""
    bad_images: dict[str, str]
    """Problem of each unreadable image by its path below the folder."""


def unpack_share(job: Extraction, advance: Advance) -> Extracted:
    """Write the members of a share below its folder, whose subfolders exist.

    Raises: DataError naming the archive when it is damaged; OSError.
    """
    from rl_core.data.check.images import image_problem

    digests, bad, unreported = {}, {}, 0
    archive = os.open(job.source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for member in job.members:
            path = f"{job.folder}/{member.target}"
            if member.packed is None:
                pieces = _loose(f"{job.source}/{member.name}")
            else:
                pieces = _unpacked(archive, member)
            digests[member.target], whole = _write(pieces, path)
            if job.check is not ImageCheck.NONE:
                problem = image_problem(
                    Path(path) if whole is None else whole, decode=job.check is ImageCheck.DECODE
                )
                if problem is not None:
                    bad[member.target] = problem
            unreported += 1
            if unreported == REPORT_EVERY:
                advance(unreported)
                unreported = 0
    except (_Damaged, zlib.error) as error:
        raise DataError(
            f"{job.source}: a damaged or truncated zip archive ({error}); fetch it again"
        ) from error
    finally:
        os.close(archive)
    advance(unreported)
    return Extracted(digests, bad)


class _Damaged(Exception):
    """Error of an archive whose content differs from its directory."""


def _write(pieces: Iterator[bytes], path: str) -> tuple[str, bytes | None]:
    """Write pieces to a new file.

    Returns: its sha256, and its content if that came in one piece.
    """
    digest, whole, count = hashlib.sha256(), b"", 0
    file = os.open(path, _CREATE, 0o666)
    try:
        for piece in pieces:
            digest.update(piece)
            whole, count = piece, count + 1
            done = os.write(file, piece)
            while done < len(piece):
                done += os.write(file, memoryview(piece)[done:])
    finally:
        os.close(file)
    return digest.hexdigest(), whole if count <= 1 else None


def _unpacked(archive: int, member: Member) -> Iterator[bytes]:
    """Yield a member's unpacked content. Raises: _Damaged, zlib.error."""
    assert member.packed is not None
    pieces = _packed_pieces(archive, member.name, member.packed)
    if member.packed.method == DEFLATED:
        pieces = _inflated(pieces, member.num_bytes)
    size, checksum = 0, 0
    for piece in pieces:
        size, checksum = size + len(piece), zlib.crc32(piece, checksum)
        if size > member.num_bytes:
            raise _Damaged(
                f"{member.name!r} unpacks to more than the {member.num_bytes} bytes it declares"
            )
        yield piece
    if size != member.num_bytes:
        raise _Damaged(
            f"{member.name!r} unpacks to {size} of the {member.num_bytes} bytes it declares"
        )
    if checksum != member.packed.checksum:
        raise _Damaged(f"bad CRC-32 for file {member.name!r}")


def _packed_pieces(archive: int, name: str, packed: Packed) -> Iterator[bytes]:
    """Yield a member's packed bytes, at most `CHUNK_BYTES` at a time."""
    encoded = name.encode()  # never shorter than the same name in the one-byte code of old archives
    head = os.pread(archive, _HEADER.size + len(encoded), packed.offset)
    if len(head) < _HEADER.size or not head.startswith(_SIGNATURE):
        raise _Damaged(f"no header of {name!r} where the directory says")
    _, name_bytes, extra_bytes = _HEADER.unpack_from(head)
    found = head[_HEADER.size : _HEADER.size + name_bytes]
    if len(found) != name_bytes or (found != encoded and found.decode("cp437") != name):
        raise _Damaged(f"the directory says {name!r} where the header says {found!r}")
    place = packed.offset + _HEADER.size + name_bytes + extra_bytes
    end = place + packed.num_bytes
    while place < end:
        piece = os.pread(archive, min(CHUNK_BYTES, end - place), place)
        if not piece:
            raise _Damaged(f"ends within {name!r}")
        place += len(piece)
        yield piece


def _inflated(pieces: Iterator[bytes], num_bytes: int) -> Iterator[bytes]:
    """Yield inflated pieces, `num_bytes` in all and at most one byte more, whatever the stream
    holds."""
    stream, left = zlib.decompressobj(-zlib.MAX_WBITS), num_bytes + 1
    for packed in pieces:
        full = True
        # Behind a full piece there may be more, even when all of the input is taken.
        while full and left:
            bound = min(CHUNK_BYTES, left)
            piece = stream.decompress(packed, bound)
            packed, full, left = stream.unconsumed_tail, len(piece) == bound, left - len(piece)
            if piece:
                yield piece


def _loose(path: str) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while piece := file.read(CHUNK_BYTES):
            yield piece
