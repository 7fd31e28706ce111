"""Detection of training rows with the question of a held-out row, which must never be trained on.

Two rows ask the same question if their messages, except system messages, agree in role and text up
to surrounding spaces, and they show the same media. The file, the reward and the other columns do
not matter.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from rl_core.data.check.columns import has_messages, is_text
from rl_core.data.read.arrow import compute
from rl_core.data.read.readers import normalise, raw_values
from schemas.receipts import Rejection
from schemas.rows.problems import Problem, as_list, get
from schemas.rows.response_rows import PARAMS

if TYPE_CHECKING:
    import pyarrow as pa

REASON = "also a held-out row"
_MESSAGE, _PART, _SPACES = "\x02", "\x03", " \t\r\n"

Question: TypeAlias = tuple[str, str]
"""Text and media of a row's question."""


def question_of(row: Mapping[str, object]) -> Question:
    """Return the question of a row of any contract; its text is empty if the row asks nothing."""
    params = row.get(PARAMS)
    prompt = (
        get(params, "input")
        if isinstance(params, Mapping)
        else get(row, "prompt", "caption", "question")
    )
    media = as_list(get(row, "media_refs", "media", "images")) or []
    if (image := get(row, "image")) is not None:
        media = as_list(image) or [image]
    return _text_key(prompt), _media_key(media)


class HeldOut:
    """Questions of held-out files, each with the place of its row."""

    def __init__(self) -> None:
        self.places: dict[Question, str] = {}

    @classmethod
    def of_files(cls, paths: Iterable[Path | str], prompt_key: str = "prompt") -> "HeldOut":
        """Read the questions of some files; rows that cannot be read are skipped."""
        held_out = cls()
        for path in paths:
            for raw in raw_values(path, prompt_key=prompt_key, on_bad_line=lambda *_: None):
                held_out.add(normalise(raw.value, prompt_key), f"{path}:{raw.number}")
        return held_out

    def add(self, row: Mapping[str, Any], place: str) -> None:
        """Add the question of a held-out row."""
        question = question_of(row)
        if question[0]:
            self.places.setdefault(question, place)

    def rejections(
        self, rows: Sequence[Mapping[str, object]], numbers: Sequence[int], file: str
    ) -> list[Rejection]:
        """Return a rejection for each row with a held-out question."""
        found = []
        for number, row in zip(numbers, rows, strict=True):
            if self.places and (place := self.places.get(question_of(row))) is not None:
                expected = f"a question that is not in {place}"
                found.append(
                    Problem("prompt", REASON, row.get("prompt"), expected).rejection(file, number)
                )
        return found

    def candidates(self, batch: "pa.RecordBatch", prompt_key: str) -> list[int]:
        """Return the positions of the rows of an Arrow batch whose text may be that of a held-out
        row."""
        import pyarrow as pa

        pc = compute()
        name = prompt_key if prompt_key in batch.schema.names else "prompt"
        if not self.places or name not in batch.schema.names:
            return []
        prompts = batch.column(name)
        if not (is_text(prompts.type) or has_messages(prompts.type)):
            return list(range(batch.num_rows))
        texts = pa.array({text for text, _ in self.places}, pa.string())
        return pc.indices_nonzero(pc.is_in(_arrow_text_keys(prompts), value_set=texts)).to_pylist()


def _text_key(prompt: object) -> str:
    messages = (
        [{"role": "user", "content": prompt}] if isinstance(prompt, str) else as_list(prompt) or []
    )
    parts = [
        ""
        if message.get("role") == "system"
        else f"{message.get('role')}{_PART}{_text(message.get('content'))}"
        for message in messages
        if isinstance(message, Mapping)
    ]
    return _MESSAGE.join(parts).strip(_MESSAGE)


def _arrow_text_keys(prompts: "pa.Array") -> "pa.Array":
    """Compute `_text_key` of every prompt of a column."""
    import pyarrow as pa

    pc = compute()
    if is_text(prompts.type):
        return pc.binary_join_element_wise(
            "user", pc.utf8_trim(prompts.cast(pa.string()), _SPACES), _PART
        )
    messages = pc.list_flatten(prompts)
    roles, texts = (
        pc.struct_field(messages, name).cast(pa.string()) for name in ("role", "content")
    )
    parts = pc.binary_join_element_wise(
        roles, pc.utf8_trim(texts, _SPACES), _PART, null_handling="replace"
    )
    parts = pc.if_else(pc.fill_null(pc.equal(roles, "system"), False), "", parts)
    lengths = pc.fill_null(pc.list_value_length(prompts), 0).cast(pa.int32())
    starts = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths)])
    return pc.utf8_trim(pc.binary_join(pa.ListArray.from_arrays(starts, parts), _MESSAGE), _MESSAGE)


def _media_key(media: Sequence[object]) -> str:
    return _PART.join(_medium(one) for one in media)


def _medium(one: object) -> str:
    if isinstance(one, Mapping):
        content = one.get("bytes")
        if isinstance(content, bytes):
            return hashlib.sha256(content).hexdigest()
        return str(get(one, "uri", "path"))
    return str(one)


def _text(content: object) -> str:
    return content.strip(_SPACES) if isinstance(content, str) else ""
