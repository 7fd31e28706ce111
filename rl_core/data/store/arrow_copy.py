"""Memory-mapped Arrow copies of published Parquet files.

Parquet is packed, so a row in its middle cannot be read alone. Where such a file is first opened, a
copy in Arrow's own format is written next to it under a hidden name. Rows are read from its
mapping, of which the kernel keeps as much in memory as there is room for.
"""

from __future__ import annotations

import errno
import os
import tempfile
import uuid
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from rl_core.data.read.files.parquet_files import open_parquet
from rl_core.data.store.atomic import storage_error
from rl_core.data.store.views import View

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_AT_ONCE = 16_384
_ORIGIN = b"copy of"
_VERSION = "1"
_NOT_WRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS}


class TextColumn(View[str]):
    """A column of texts in mapped batches, by row."""

    def __init__(self, batches: Sequence[pa.RecordBatch], name: str) -> None:
        self._columns = [batch.column(name) for batch in batches]
        self._ends = list(accumulate(map(len, self._columns)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def item(self, place: int) -> str:
        batch = bisect_right(self._ends, place)
        return self._columns[batch][place - (self._ends[batch - 1] if batch else 0)].as_py()

    def __iter__(self) -> Iterator[str]:
        return (text for column in self._columns for text in column.to_pylist())


def mapped_batches(parquet: Path, columns: Sequence[str]) -> list[pa.RecordBatch]:
    """Return columns of a Parquet file as memory-mapped batches, in order.

    The copy is made if there is none, or it is of another content, or not whole. Where the folder
    cannot be written, it is made in the folder for temporary files, and lasts as long as its user.
    Raises: DataError when the Parquet file cannot be read; StorageError when nothing can be
    written.
    """
    stat = parquet.stat()
    origin = f"{_VERSION} {stat.st_size} {stat.st_mtime_ns} {' '.join(columns)}".encode()
    copy = parquet.with_name(f".{parquet.stem}.arrow")
    found = _open(copy, origin)
    if found is not None:
        return found
    building = copy.with_name(f"{copy.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        _write(parquet, columns, building, origin)
        building.replace(copy)
    except OSError as error:
        if error.errno not in _NOT_WRITABLE:
            raise storage_error(copy, error) from error
        return _temporary(parquet, columns, origin)
    finally:
        with suppress(OSError):
            building.unlink(missing_ok=True)
    return _whole(copy, origin)


def _temporary(parquet: Path, columns: Sequence[str], origin: bytes) -> list[pa.RecordBatch]:
    """Return batches of a copy that has no name any more, so that it goes with its last user."""
    with tempfile.TemporaryDirectory(prefix="rl-train-rows-") as folder:
        copy = Path(folder) / "rows.arrow"
        try:
            _write(parquet, columns, copy, origin)
        except OSError as error:
            raise storage_error(copy, error) from error
        return _whole(copy, origin)


def _whole(copy: Path, origin: bytes) -> list[pa.RecordBatch]:
    batches = _open(copy, origin)
    if batches is None:
        raise storage_error(copy, OSError(errno.EIO, "what was written does not come back"))
    return batches


def _open(copy: Path, origin: bytes) -> list[pa.RecordBatch] | None:
    """Return the batches of a copy; None if it is absent, cut short, or not of this origin."""
    import pyarrow as pa

    try:
        # The footer is at the end, so a file that was cut is none.
        table = pa.ipc.open_file(pa.memory_map(str(copy)))
        if (table.schema.metadata or {}).get(_ORIGIN) != origin:
            return None
        return [table.get_batch(index) for index in range(table.num_record_batches)]
    except (pa.ArrowException, OSError):
        return None


def _write(parquet: Path, columns: Sequence[str], target: Path, origin: bytes) -> None:
    """Write a copy. Raises: OSError when the file cannot be made; StorageError when it cannot be
    filled."""
    import pyarrow as pa

    with target.open("xb") as file, open_parquet(parquet) as table:
        fields = [table.schema_arrow.field(name) for name in columns]
        schema = pa.schema(fields, {_ORIGIN: origin})
        batches = table.iter_batches(batch_size=ROWS_AT_ONCE, columns=list(columns))
        with _filling(target):
            writer = pa.ipc.new_file(file, schema)
        for batch in batches:
            with _filling(target):
                named = batch.select(schema.names)
                writer.write_batch(named.replace_schema_metadata(schema.metadata))
        with _filling(target):
            writer.close()
            file.flush()
            os.fsync(file.fileno())
    # Arrow keeps what it read by; a driver that only maps the copy has no use for it.
    del batches
    pa.default_memory_pool().release_unused()


@contextmanager
def _filling(target: Path) -> Iterator[None]:
    """Tell an error of the copy from one of the Parquet file, which is open at the same time."""
    try:
        yield
    except OSError as error:
        raise storage_error(target, error) from error
