"""Text files as streams, unpacked on the way where their name ends in `.gz`, `.bz2`, `.zst` or
`.xz`."""

import bz2
import errno
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from rl_core.data.store.atomic import unreadable
from rl_core.errors import DataError


def _zstd(file: Path) -> Any:
    import pyarrow as pa

    return pa.input_stream(str(file), compression="zstd")


OPENERS: dict[str, Callable[[Path], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".zst": _zstd,
    ".xz": lzma.open,
}
"""Function that opens the unpacked bytes, by the last suffix of the name."""


@contextmanager
def opened_bytes(file: Path) -> Iterator[IO[bytes]]:
    """Open a file's bytes, unpacked. Raises: DataError when the packing is damaged; StorageError
    when the disk does not give them; OSError."""
    opener = OPENERS.get(file.suffix.lower())
    if opener is None:
        with file.open("rb") as raw:
            try:
                yield raw
            except OSError as error:
                if error.filename is None and error.errno in (errno.EIO, errno.ESTALE):
                    raise unreadable(file, error) from error
                raise
        return
    with file.open("rb"):
        pass  # what keeps the file itself from being opened is no damage
    try:
        with opener(file) as raw:
            yield raw
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise DataError(
            f"{file}: a damaged or truncated {file.suffix} file ({error}); fetch it again"
        ) from error


@contextmanager
def opened_text(file: Path, newline: str | None = None) -> Iterator[IO[str]]:
    """Open a file's text: UTF-8 with or without a BOM, where other bytes become lone surrogates.

    Args: newline: as of `open`. Raises: as `opened_bytes`.
    """
    with (
        opened_bytes(file) as raw,
        io.TextIOWrapper(
            raw, encoding="utf-8-sig", errors="surrogateescape", newline=newline
        ) as text,
    ):
        yield text
