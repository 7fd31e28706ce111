"""Which reader takes a file, by its extension."""

from collections.abc import Callable, Iterator
from pathlib import Path

from rl_core.data.read.parquet_files import read_parquet
from rl_core.data.read.text_files import OnBadLine, RawValue, read_json, read_jsonl, read_txt

READERS: dict[str, Callable[[Path, str, OnBadLine], Iterator[RawValue]]] = {
    ".txt": read_txt,
    ".jsonl": read_jsonl,
    ".json": read_json,
    ".parquet": read_parquet,
}
