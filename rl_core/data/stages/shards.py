"""One file of a text blend: its rows resolved, checked, assigned to a split and written as JSONL
shards."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from rl_core.data.overlap.questions import question_of
from rl_core.data.prepare.workers import Advance
from rl_core.data.read.readers import raw_values
from rl_core.data.stages.base import Tally, slug
from rl_core.data.stages.blend import Split
from rl_core.data.stages.placeholders import UNRESOLVED, is_placeholder, placeholder_of, resolve
from rl_core.errors import DataError
from schemas.rows.problems import as_list, get
from schemas.rows.response_rows import PARAMS, input_messages, response_contract

Row: TypeAlias = dict[str, Any]
LEAK = "also_held_out"


@dataclass(frozen=True)
class ShardJob:
    """One input file and all settings for its rows."""

    label: str
    file: str
    work: str
    index: int
    """Number of the input file, in the shards' names."""
    split: Split | None
    """Purpose of the rows; None decides by the prompt's hash."""
    weight: float
    text_field: str | None
    val_fraction: float
    seed: int
    tables: Mapping[str, Mapping[int, tuple[str, str]]]
    """Question and answer by table and row."""
    held_out: list[bytes]
    """Keys of prompts that other files hold out."""
    preview_rows: int


@dataclass
class Written:
    """Result of writing one input file."""

    label: str
    tally: Tally = field(default_factory=Tally)
    num_placeholders: int = 0
    shards: list[Row] = field(default_factory=list)
    val_keys: set[bytes] = field(default_factory=set)
    """Keys of the prompts that a part of the blend declares as held out."""
    preview: list[Row] = field(default_factory=list)


def placeholder_rows(file: Path) -> Iterator[tuple[str, int]]:
    """Yield the table rows that a file's placeholders name."""
    for raw in raw_values(file, on_bad_line=lambda *_: None):
        if (
            isinstance(raw.value, Mapping)
            and is_placeholder(raw.value)
            and (pointer := placeholder_of(raw.value))
        ):
            yield pointer


def read_shard(file: Path) -> Iterator[Row]:
    """Yield the rows of a published shard, in order. Raises: DataError."""
    for raw in raw_values(file):
        yield raw.value


def write_shard(job: ShardJob, advance: Advance) -> Written:
    """Write one input file's shards, as one worker's job."""
    written, held_out, file = Written(job.label), set(job.held_out), Path(job.file)

    def unreadable(number: int, error: DataError) -> None:
        written.tally.refuse("unreadable_line", f"{file}:{number}", str(error))

    with ExitStack() as stack:
        shards = {
            split: stack.enter_context(_Shard(Path(job.work), split, job.index)) for split in Split
        }
        for raw in raw_values(file, on_bad_line=unreadable):
            row = _judged(raw.value, f"{file}:{raw.number}", job, written)
            if row is None:
                continue
            key = prompt_digest(row)
            split = job.split or _split_of(key, job)
            if split is Split.TRAIN and key in held_out:
                written.tally.refuse(
                    LEAK,
                    f"{file}:{raw.number}",
                    "the prompt is also in a held-out part of the blend",
                )
                continue
            if job.split is Split.VAL:
                written.val_keys.add(key)
            text = json.dumps(row, ensure_ascii=False) + "\n"
            shards[split].write(text, _copies(text, job))
            written.tally.keep()
            if len(written.preview) < job.preview_rows:
                written.preview.append(row)
    written.shards = [shard.entry(job.label) for shard in shards.values() if shard.num_rows]
    advance(1)
    return written


def prompt_digest(row: Mapping[str, object]) -> bytes:
    """Return a digest of 16 bytes that depends only on the row's prompt."""
    question = question_of({PARAMS: {"input": _plain(input_messages(row))}})
    return hashlib.sha256(question[0].encode()).digest()[:16]


class _Shard:
    """A JSONL file that exists only if something was written to it."""

    def __init__(self, work: Path, split: Split, index: int) -> None:
        self.split, self.name = split, f"{split}/{split}-{index:05d}.jsonl"
        self.num_rows, self._path, self._digest = 0, work / self.name, hashlib.sha256()
        self._file: BinaryIO | None = None

    def __enter__(self) -> "_Shard":
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def write(self, line: str, copies: int) -> None:
        if not copies:
            return
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("xb")
        for _ in range(copies):
            self._file.write(line.encode())
            self._digest.update(line.encode())
            self.num_rows += 1

    def entry(self, label: str) -> Row:
        digest = self._digest.hexdigest()
        return {
            "path": self.name,
            "split": self.split,
            "num_rows": self.num_rows,
            "sha256": digest,
            "source": label,
        }


def _judged(value: Any, place: str, job: ShardJob, written: Written) -> Row | None:
    """Return the row in its final form, or None after counting it as refused."""
    row = {"prompt": value} if isinstance(value, str) else dict(value)
    if is_placeholder(row):
        written.num_placeholders += 1
        try:
            pointer = placeholder_of(row)
            row = resolve(row, job.tables.get(pointer[0], {}) if pointer else {})
        except DataError as error:
            written.tally.refuse(UNRESOLVED, place, str(error))
            return None
    row = _with_params(row, job.text_field)
    if problems := response_contract().problems(row):
        written.tally.refuse(slug(problems[0]), place, problems[0].at("").strip())
        return None
    return row


def _with_params(row: Row, text_field: str | None) -> Row:
    """Add `responses_create_params` from the blend's `text_field` to rows that have none."""
    prompt = get(row, text_field) if text_field else None
    if get(row, PARAMS) is not None or prompt is None:
        return row
    messages = as_list(prompt) or [{"role": "user", "content": prompt}]
    return {**row, PARAMS: {"input": messages}}


def _split_of(key: bytes, job: ShardJob) -> Split:
    if _fraction(f"{job.seed}:".encode() + key) < job.val_fraction:
        return Split.VAL
    return Split.TRAIN


def _copies(text: str, job: ShardJob) -> int:
    """Return the number of copies: the whole passes, and one more for the fraction of rows selected
    by their hash."""
    whole = int(job.weight)
    return whole + (_fraction(f"weight {job.seed}:{text}".encode()) < job.weight - whole)


def _fraction(content: bytes) -> float:
    """Return a pseudo-random number in [0, 1) that depends only on the content."""
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "big") / 2**64


def _plain(messages: list[Row]) -> list[Row]:
    """Return the messages with their contents as text, joining lists of parts, so that they count
    in the comparison."""
    plain = []
    for message in messages:
        parts = as_list(message.get("content"))
        if parts is None:
            content = message.get("content")
        else:
            content = json.dumps(parts, sort_keys=True, ensure_ascii=False)
        if "role" in message:
            whole = {"role": message["role"], "content": content}
        else:
            whole = _item(message)
        plain.append(whole)
    return plain


def _item(item: Mapping[str, object]) -> Row:
    """Convert an item that is not a message (a function call, its output) to the form of one."""
    return {"role": "item", "content": json.dumps(item, sort_keys=True, ensure_ascii=False)}
