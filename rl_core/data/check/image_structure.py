"""Check of a plain PNG or JPEG's completeness by its structure, without a decoder.

Accepts only the common case, read strictly: every chunk in its place, every checksum right, nothing
but pixels, tables and simple notes. Anything else (other formats, profiles, EXIF, damage) is left
to PIL. Sources: PNG, ISO/IEC 15948 sections 5 and 11; JPEG, ITU-T T.81 annex B.
"""

import zlib
from struct import unpack_from

_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
"""Bits of a sample allowed for each colour type."""
_PNG_LENGTHS = {b"gAMA": 4, b"pHYs": 9, b"sRGB": 1, b"cHRM": 32, b"tIME": 7, b"IEND": 0}
"""Length of PNG chunks of fixed size that need not be read, including the end chunk."""
_PNG_FREE = {b"PLTE", b"IDAT"}

_JPEG = b"\xff\xd8\xff"
_DQT, _SOS = 0xDB, 0xDA
_JPEG_FRAMES = {0xC0, 0xC1, 0xC2}
"""Frame types baseline, extended and progressive, Huffman coded."""
_JPEG_PASSED = {0xC4, 0xDD, 0xFE}
"""Segments that need not be read: Huffman tables, restart interval, comment."""
_JPEG_NOTES = {0xE0: 12, 0xEE: 12}
"""Least length of the JFIF and Adobe segments."""


def plain_image_size(content: bytes) -> tuple[int, int] | None:
    """Return width and height of a complete, plain PNG or JPEG; None leaves the judgement to a
    decoder."""
    if content.startswith(_PNG):
        return _png_size(content)
    if content.startswith(_JPEG) and content.endswith(b"\xff\xd9"):
        return _jpeg_size(content)
    return None


def _png_size(content: bytes) -> tuple[int, int] | None:
    view, end = memoryview(content), len(content) - 12
    place, kind, seen = len(_PNG), b"", set()
    size = None
    while kind != b"IEND":
        if place > end:
            return None
        length, kind = unpack_from(">I4s", content, place)
        if place + length > end:
            return None
        (checksum,) = unpack_from(">I", content, place + 8 + length)
        if zlib.crc32(view[place + 4 : place + 8 + length]) != checksum:
            return None
        if size is None:
            size = _png_header(content) if (length, kind) == (13, b"IHDR") else None
            if size is None:
                return None
        elif kind not in _PNG_FREE and _PNG_LENGTHS.get(kind) != length:
            return None
        seen.add(kind)
        place += 12 + length
    return size if b"IDAT" in seen else None


def _png_header(content: bytes) -> tuple[int, int] | None:
    width, height, depth, colours, packing, filtering, interlace = unpack_from(
        ">IIBBBBB", content, 16
    )
    known = depth in _PNG_DEPTHS.get(colours, ()) and packing == filtering == 0 and interlace < 2
    if known and width and height:
        return (width, height)
    return None


def _jpeg_size(content: bytes) -> tuple[int, int] | None:
    place, size = 2, None
    while place + 4 <= len(content):
        start, kind, length = unpack_from(">BBH", content, place)
        body = content[place + 4 : place + 2 + length]
        if start != 0xFF or length < 2 or len(body) != length - 2:
            return None
        if kind == _SOS:
            return size
        if kind in _JPEG_FRAMES:
            size = _jpeg_frame(body)
            if size is None:
                return None
        elif kind == _DQT:
            # Tables of eight bits, 64 numbers each, after a byte that names the table.
            if len(body) % 65 or any(name > 3 for name in body[::65]):
                return None
        elif kind not in _JPEG_PASSED and len(body) < _JPEG_NOTES.get(kind, length):
            return None
        place += 2 + length
    return None


def _jpeg_frame(body: bytes) -> tuple[int, int] | None:
    if len(body) < 6:
        return None
    bits, height, width, layers = unpack_from(">BHHB", body)
    known = bits == 8 and layers in (1, 3, 4) and len(body) == 6 + 3 * layers
    if known and width and height:
        return (width, height)
    return None
