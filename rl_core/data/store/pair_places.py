"""File format of prepared pairs: Parquet with `uid`, and where the pair is: the digest of its
`source` and its `row` there."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_core.data.store.arrow_copy import TextColumn, mapped_batches
from rl_core.errors import DataError

COLUMNS = ("uid", "source", "row")
ROWS_PER_GROUP = 65_536


class PlaceWriter:
    """Writes places group by group; use as a context manager."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._schema = pa.schema(zip(COLUMNS, (pa.string(), pa.string(), pa.int64()), strict=True))
        self._writer = pq.ParquetWriter(path, self._schema)
        self._columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
        self.num_rows = 0

    def __enter__(self) -> "PlaceWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._flush()
        self._writer.close()

    def write(self, uid: str, source: str, row: int) -> None:
        """Append a pair."""
        for name, value in zip(COLUMNS, (uid, source, row), strict=True):
            self._columns[name].append(value)
        self.num_rows += 1
        if len(self._columns["uid"]) == ROWS_PER_GROUP:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        if self._columns["uid"]:
            self._writer.write_table(pa.table(self._columns, schema=self._schema))
            self._columns = {name: [] for name in COLUMNS}


@dataclass(frozen=True)
class PairPlaces:
    """Places of the pairs of one split, by index; 12 bytes of memory each."""

    uids: TextColumn
    """Mapped from disk."""
    sources: list[str]
    """Digest of each source."""
    source_N: Any
    """[N] int32, the index of each pair's source."""
    row_N: Any
    """[N] int64, the index of each pair in its source."""


def open_places(path: Path | str) -> PairPlaces:
    """Read a file of places. Raises: DataError when it does not exist or cannot be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = Path(path)
    if not file.is_file():
        raise DataError(f"{path}: no such file; expected prepared pairs")
    try:
        table = pq.read_table(file, columns=["source", "row"], read_dictionary=["source"])
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a readable Parquet file ({error})") from error
    sources = table.unify_dictionaries().column("source").combine_chunks()
    return PairPlaces(
        TextColumn(mapped_batches(file, ("uid",)), "uid"),
        sources.dictionary.to_pylist(),
        sources.indices.to_numpy(),
        table.column("row").to_numpy(),
    )
