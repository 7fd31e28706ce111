"""Formats of raw files and their readers, by the file's name, or its first bytes where the name
says nothing."""

from collections.abc import Callable, Iterator
from pathlib import Path

from rl_core.data.read.files.compressed import OPENERS
from rl_core.data.read.files.parquet_files import read_arrow, read_parquet
from rl_core.data.read.files.table_files import read_csv, read_tsv
from rl_core.data.read.files.text_files import OnBadLine, RawValue, read_json, read_jsonl, read_txt

READERS: dict[str, Callable[[Path, str, OnBadLine], Iterator[RawValue]]] = {
    ".txt": read_txt,
    ".jsonl": read_jsonl,
    ".json": read_json,
    ".parquet": read_parquet,
    ".ndjson": read_jsonl,
    ".csv": read_csv,
    ".tsv": read_tsv,
    ".arrow": read_arrow,
}
PARQUET = ".parquet"
_BINARY = (PARQUET, ".arrow")
_MAGIC = {b"PAR1": PARQUET, b"ARRO": ".arrow"}
KNOWN = f"{', '.join(READERS)}, the texts also with {', '.join(OPENERS)}"
"""The formats, for messages."""


def format_by_name(file: Path) -> str | None:
    """Return the format that a name stands for, a key of `READERS`; None if it stands for none.

    `.jsonl` of `rows.jsonl.gz`.
    """
    suffix = file.suffix.lower()
    if suffix in OPENERS:
        inner = Path(file.stem).suffix.lower()
        if inner in READERS and inner not in _BINARY:
            return inner
        return None
    return suffix if suffix in READERS else None


def format_of(file: Path) -> str | None:
    """Return the format of an existing file by its name, else by what it begins with; None if
    neither tells."""
    named = format_by_name(file)
    if named is not None or not file.is_file():
        return named
    with file.open("rb") as raw:
        head = raw.read(64)
    if head[:4] in _MAGIC:
        return _MAGIC[head[:4]]
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    return ".json" if text.startswith(b"{") else None
