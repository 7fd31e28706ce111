"""Conversion between kinds of rows: SkyRL prompt rows, UniRL media prompts, response rows.

prompt -> response: `input` is the prompt, the other columns stay. response -> prompt: the inverse;
without a `reward_spec`, `expected_answer` is the ground truth. prompt -> media: one user message
becomes the text, all other columns `metadata`. media -> prompt: the text becomes a user message,
`metadata` becomes columns again. Conversions between media and response rows go through a prompt
row.

A prompt row that is converted there and back is the same row. Rows that the target cannot hold (a
conversation in a media prompt) are refused one by one.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rl_core.data.check.contracts import recognise
from rl_core.data.prepare.prompt_items import to_json
from rl_core.data.read.readers import normalise, raw_values
from rl_core.data.read.sources import data_files
from rl_core.data.store.atomic import atomic_writer
from rl_core.errors import DataError
from schemas.contract import SchemaName
from schemas.media_prompts import KNOWN_FIELDS
from schemas.problems import get
from schemas.prompt_rows import reward_spec_of
from schemas.response_rows import PARAMS, input_messages, params_problems

Row = dict[str, Any]
_MEDIA_FIELDS = ("prompt_id", "media_refs", "media")


def convert_file(
    source: str | Path,
    target: Path,
    to: SchemaName,
    *,
    env_class: str | None = None,
    prompt_key: str = "prompt",
) -> int:
    """Write the rows of `source` as rows of kind `to`.

    Returns: number of rows. Args: target: `.jsonl`, `.json`, or `.parquet` if every column has one
    type. env_class: environment of prompt rows that do not name one.
    Raises: DataError naming the first row that cannot be converted; `target` is then untouched.
    """
    rows = _converted(source, to, env_class, prompt_key)
    suffix = target.suffix.lower()
    if suffix == ".parquet":
        return _write_parquet(list(rows), target)
    if suffix not in (".jsonl", ".json"):
        raise DataError(
            f"{target}: unknown extension {target.suffix!r}; expected .jsonl, .json, .parquet"
        )
    num_rows = 0
    with atomic_writer(target) as file:
        for row in rows:
            opening = "" if suffix == ".jsonl" else "[\n" if not num_rows else ",\n"
            text = json.dumps(row, ensure_ascii=False, default=_refuse)
            file.write(opening + text + ("\n" if suffix == ".jsonl" else ""))
            num_rows += 1
        if suffix == ".json":
            file.write("\n]\n" if num_rows else "[]\n")
    return num_rows


def convert_row(
    row: Mapping[str, Any], kind: SchemaName, to: SchemaName, place: str, env_class: str | None
) -> Row:
    """Convert one row to another kind. Raises: DataError naming `place`."""
    if kind is to:
        return dict(row)
    prompt_row = _TO_PROMPT[kind](row, place)
    if to is SchemaName.PROMPT:
        return _complete(prompt_row, place, env_class)
    return _FROM_PROMPT[to](prompt_row, place)


def _converted(
    source: str | Path, to: SchemaName, env_class: str | None, prompt_key: str
) -> Iterator[Row]:
    if to is SchemaName.PREFERENCE:
        raise DataError(
            "preference rows hold two answers, which no other kind of row has; nothing converts "
            "to them"
        )
    for file in data_files(source):
        kind = recognise(file, prompt_key=prompt_key)
        if kind is SchemaName.PREFERENCE:
            raise DataError(
                f"{file}: preference rows hold two answers, which no other kind of row can keep"
            )
        for raw in raw_values(file, prompt_key=prompt_key):
            row = {"prompt": raw.value} if isinstance(raw.value, str) else dict(raw.value)
            if prompt_key != "prompt" and prompt_key in row:
                row["prompt"] = row.pop(prompt_key)
            yield convert_row(row, kind, to, f"{file}:{raw.number}", env_class)


def _prompt_to_prompt(row: Mapping[str, Any], _place: str) -> Row:
    return normalise(dict(row))


def _media_to_prompt(row: Mapping[str, Any], place: str) -> Row:
    text = get(row, "prompt", "caption")
    if not isinstance(text, str):
        raise DataError(f"{place} field prompt: missing; expected a text under prompt or caption")
    metadata = get(row, "metadata")
    if metadata is None:
        metadata = {key: value for key, value in row.items() if key not in KNOWN_FIELDS}
    kept = {key: row[key] for key in _MEDIA_FIELDS if get(row, key) is not None}
    clash = sorted((metadata.keys() & kept.keys()) | (metadata.keys() & {"prompt"}))
    if clash:
        raise DataError(
            f"{place} field metadata: {', '.join(clash)} would hide the row's own; rename it"
        )
    return {"prompt": [{"role": "user", "content": text}], **metadata, **kept}


def _response_to_prompt(row: Mapping[str, Any], place: str) -> Row:
    problems = params_problems(get(row, PARAMS))
    if problems:
        raise DataError(problems[0].at(place))
    messages = input_messages(row)
    if any(not isinstance(one.get("content"), str) or "role" not in one for one in messages):
        raise DataError(
            f"{place} field {PARAMS}.input: holds more than texts, which a prompt row cannot keep"
        )
    others = {key: value for key, value in row[PARAMS].items() if key != "input"}
    rest = {key: value for key, value in row.items() if key != PARAMS}
    return {"prompt": messages, **rest, **({PARAMS: others} if others else {})}


def _prompt_to_media(row: Row, place: str) -> Row:
    messages = row.get("prompt")
    one = messages[0] if isinstance(messages, list) and len(messages) == 1 else {}
    if (
        not isinstance(one, Mapping)
        or one.get("role") != "user"
        or not isinstance(one.get("content"), str)
    ):
        raise DataError(f"{place} field prompt: a media prompt is one text; this is a conversation")
    rest = {key: value for key, value in row.items() if key != "prompt"}
    kept = {key: rest.pop(key) for key in _MEDIA_FIELDS if key in rest}
    return {"prompt": one["content"], **kept, **({"metadata": rest} if rest else {})}


def _prompt_to_response(row: Row, place: str) -> Row:
    if not isinstance(row.get("prompt"), list):
        raise DataError(f"{place} field prompt: missing; expected a list of messages")
    others = row.get(PARAMS)
    if others is not None and not isinstance(others, Mapping):
        raise DataError(f"{place} field {PARAMS}: expected an object")
    rest = {key: value for key, value in row.items() if key not in ("prompt", PARAMS)}
    return {PARAMS: {"input": row["prompt"], **(others or {})}, **rest}


def _complete(row: Row, place: str, env_class: str | None) -> Row:
    """Complete a prompt row with environment and reward specification, from a response row's
    columns if necessary."""
    if get(row, "env_class") is None:
        if env_class is None:
            raise DataError(
                f"{place} field env_class: missing; name the environment of these rows with "
                "--env-class"
            )
        row["env_class"] = env_class
    if reward_spec_of(row) is None:
        if (answer := get(row, "expected_answer")) is None:
            raise DataError(
                f"{place} field reward_spec: missing, and no expected_answer to make it from"
            )
        row["reward_spec"] = {"method": "rule", "ground_truth": answer}
    return row


def _write_parquet(rows: list[Row], target: Path) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from rl_core.data.read.parquet_files import without_nulls

    try:
        # `Table.from_pylist` knows the first row's columns only.
        names = list(dict.fromkeys(name for row in rows for name in row))
        table = pa.table({name: [row.get(name) for row in rows] for name in names})
    except (pa.ArrowException, OverflowError, TypeError) as error:
        raise DataError(
            f"{target}: Parquet needs one type per column ({error}); write .jsonl instead"
        ) from error
    for number, (row, back) in enumerate(zip(rows, table.to_pylist(), strict=True), start=1):
        if to_json(without_nulls(back), str(target)) != to_json(without_nulls(row), str(target)):
            raise DataError(
                f"{target}: row {number} would not come back from Parquet as it is; write .jsonl "
                "instead"
            )
    building = target.with_name(f".{target.name}.tmp")
    pq.write_table(table, building)
    building.replace(target)
    return len(rows)


def _refuse(value: Any) -> Any:
    raise DataError(
        f"a value of type {type(value).__name__} cannot be written as JSON; convert to .parquet"
    )


_TO_PROMPT: dict[SchemaName, Callable[[Mapping[str, Any], str], Row]] = {
    SchemaName.PROMPT: _prompt_to_prompt,
    SchemaName.MEDIA: _media_to_prompt,
    SchemaName.RESPONSE: _response_to_prompt,
}
_FROM_PROMPT: dict[SchemaName, Callable[[Row, str], Row]] = {
    SchemaName.MEDIA: _prompt_to_media,
    SchemaName.RESPONSE: _prompt_to_response,
}
