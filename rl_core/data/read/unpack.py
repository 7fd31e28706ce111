"""Unpacking a share of an archive: one worker's job, one pass over each member for writing, digest and image check.

The archive's directory was read, and judged, before (`rl_core.data.read.archives`): a member says where its bytes lie,
so a worker neither parses the directory again nor imports what did. What was declared is held to: no byte more is
written, and size and checksum must come out right. Source: the ZIP format, PKWARE APPNOTE 6.3 section 4.3.
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
"""Methods of packing that are read."""

_HEADER = Struct("<4s22xHH")
"""A member's own header: signature, length of the name, length of what follows the name."""
_SIGNATURE = b"PK\x03\x04"
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class ImageCheck(StrEnum):
    """How closely an image is looked at while it is unpacked."""

    NONE = "none"
    """Not at all: the archive's checksum alone."""
    STRUCTURE = "structure"
    """Header, size, checksums where the format has them, and the end of the file; nothing is decoded."""
    DECODE = "decode"
    """Every pixel is decoded: about five times the time of unpacking."""


class Packed(NamedTuple):
    """Where a member lies in its archive, and how."""

    offset: int
    """Of its header, in bytes."""
    num_bytes: int
    """As packed."""
    method: int
    checksum: int
    """CRC-32 of the content."""


class Member(NamedTuple):
    """A file of an archive, or a loose one, and where it goes."""

    name: str
    target: str
    num_bytes: int
    packed: Packed | None = None
    """None for a loose file."""


@dataclass(frozen=True)
class Extraction:
    """A share of an archive, or of a folder of loose files: one worker's job."""

    source: str
    folder: str
    members: list[Member]
    check: ImageCheck


@dataclass(frozen=True)
class Extracted:
    """What came out of an archive."""

    digests: dict[str, str]
    """Path below the folder -> sha256."""
    bad_images: dict[str, str]
    """Path below the folder -> why it is no readable image."""


def unpack_share(job: Extraction, advance: Advance) -> Extracted:
    """Write the members of a share below its folder, whose subfolders are there.

    Raises: DataError naming the archive when it is damaged; OSError.
    """
    from rl_core.data.check.images import image_problem

    digests, bad, unreported = {}, {}, 0
    archive = os.open(job.source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for member in job.members:
            path = f"{job.folder}/{member.target}"
            pieces = _loose(f"{job.source}/{member.name}") if member.packed is None else _unpacked(archive, member)
            digests[member.target], whole = _write(pieces, path)
            if job.check is not ImageCheck.NONE:
                problem = image_problem(Path(path) if whole is None else whole, decode=job.check is ImageCheck.DECODE)
                if problem is not None:
                    bad[member.target] = problem
            unreported += 1
            if unreported == REPORT_EVERY:
                advance(unreported)
                unreported = 0
    except (_Damaged, zlib.error) as error:
        raise DataError(f"{job.source}: a damaged or truncated zip archive ({error}); fetch it again") from error
    finally:
        os.close(archive)
    advance(unreported)
    return Extracted(digests, bad)


class _Damaged(Exception):
    """What an archive holds is not what its directory says."""


def _write(pieces: Iterator[bytes], path: str) -> tuple[str, bytes | None]:
    """A new file of these pieces. Returns: its sha256, and its content when that came in one piece."""
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
    """A member's content. Raises: _Damaged, zlib.error."""
    assert member.packed is not None
    pieces = _packed_pieces(archive, member.name, member.packed)
    if member.packed.method == DEFLATED:
        pieces = _inflated(pieces, member.num_bytes)
    size, checksum = 0, 0
    for piece in pieces:
        size, checksum = size + len(piece), zlib.crc32(piece, checksum)
        if size > member.num_bytes:
            raise _Damaged(f"{member.name!r} unpacks to more than the {member.num_bytes} bytes it declares")
        yield piece
    if size != member.num_bytes:
        raise _Damaged(f"{member.name!r} unpacks to {size} of the {member.num_bytes} bytes it declares")
    if checksum != member.packed.checksum:
        raise _Damaged(f"bad CRC-32 for file {member.name!r}")


def _packed_pieces(archive: int, name: str, packed: Packed) -> Iterator[bytes]:
    """A member's packed bytes, at most `CHUNK_BYTES` at once."""
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
    """Inflated pieces, of `num_bytes` in all and at most one byte more, whatever the stream holds."""
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
