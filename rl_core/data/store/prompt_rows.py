"""File format of prepared rows: Parquet with `row` (one JSON string), `uid` and `num_tokens`.

A row is a string so that Arrow cannot change its types: a ground truth of `"5"` and one of `5` stay
different. Training reads it through a memory-mapped copy, row by row.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from rl_core.data.prepare.items import Item, PlayedItem
from rl_core.data.prepare.prompt_items import to_json
from rl_core.data.store.arrow_copy import TextColumn, mapped_batches
from rl_core.data.store.views import View
from rl_core.errors import DataError

COLUMNS = ("row", "uid", "num_tokens")


class PreparedWriter:
    """Writes items batch by batch; use as a context manager."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._schema = pa.schema(
            [("row", pa.string()), ("uid", pa.string()), ("num_tokens", pa.int32())]
        )
        self._writer = pq.ParquetWriter(path, self._schema)
        self.num_rows = 0

    def __enter__(self) -> "PreparedWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def write(self, items: Sequence[Item], num_tokens: list[int]) -> None:
        """Append items and the token counts of their prompts."""
        import pyarrow as pa

        texts = []
        for item in items:
            texts.append(
                to_json({k: v for k, v in item.items() if k != "uid"}, f"row {item['uid']}")
            )
        columns = [texts, [item["uid"] for item in items], num_tokens]
        table = pa.table(dict(zip(COLUMNS, columns, strict=True)), schema=self._schema)
        self._writer.write_table(table)
        self.num_rows += len(items)


def is_prepared(path: Path | str) -> bool:
    """Return True if a file holds prepared rows, judged by its columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = Path(path).expanduser()
    if file.suffix.lower() != ".parquet" or not file.is_file():
        return False
    try:
        return tuple(pq.read_schema(file).names) == COLUMNS
    except pa.ArrowException as error:
        raise DataError(f"{path}: not a readable Parquet file ({error})") from error


class PreparedRows(View[PlayedItem]):
    """The items of a prepared file, `{"prompt", "env_class", "env_extras", "uid"}`, each made anew
    from a memory-mapped row on access.

    Can be sent to other processes, which open the file themselves. Raises: DataError when the file
    is not a prepared one.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path).expanduser()
        if not self.path.is_file():
            raise DataError(
                f"{path}: no such file; expected a prepared train.parquet or eval.parquet"
            )
        if not is_prepared(self.path):
            raise DataError(
                f"{path}: not a prepared file; expected the columns {', '.join(COLUMNS)}"
            )
        batches = mapped_batches(self.path, ("row", "uid"))
        self._rows = TextColumn(batches, "row")
        self.uids = TextColumn(batches, "uid")

    def __len__(self) -> int:
        return len(self._rows)

    def item(self, place: int) -> PlayedItem:
        item: PlayedItem = json.loads(self._rows.item(place))
        item["uid"] = self.uids.item(place)
        return item

    def __reduce__(self) -> tuple[type["PreparedRows"], tuple[Path]]:
        return PreparedRows, (self.path.absolute(),)


def load_prepared(path: Path | str) -> PreparedRows:
    """Open the items of a prepared file, in order. Raises: DataError when it is not one."""
    return PreparedRows(path)
