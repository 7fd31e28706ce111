"""Conversion between kinds of rows: SkyRL prompt rows, UniRL media prompts, response rows.

prompt -> response: `input` is the prompt, the other columns stay. response -> prompt: the inverse;
without a `reward_spec`, `expected_answer` is the ground truth. prompt -> media: one user message
becomes the text, all other columns `metadata`. media -> prompt: the text becomes a user message,
`metadata` becomes columns again. Conversions between media and response rows go through a prompt
row.

A prompt row that is converted there and back is the same row. Rows that the target cannot hold (a
conversation in a media prompt) are refused one by one.

Rows of other systems (`foreign_rows`) and of any other dataset (`schemas.rows.column_map`) are
first made prompt or preference rows. Every row that is written has passed the contract of its kind.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_core.data.check.contracts import contract_of, recognise
from rl_core.data.read.files.parquet_rows import write_parquet_rows
from rl_core.data.read.foreign_rows import RowFormat, own_row
from rl_core.data.read.mapped import mapped_row, source_rows
from rl_core.data.read.readers import normalise, raise_it
from rl_core.data.read.sources import data_files
from rl_core.data.read.unpaired_rows import paired
from rl_core.data.store.atomic import atomic_writer
from rl_core.envs import accepted_ground_truths
from rl_core.envs.registration import kinds_of, spec
from rl_core.errors import DataError, RecipeError
from schemas.rows.column_map import ColumnMap
from schemas.rows.contract import SchemaName
from schemas.rows.ground_truth import GROUND_TRUTH_KINDS
from schemas.rows.media_prompts import KNOWN_FIELDS
from schemas.rows.problems import get
from schemas.rows.prompt_rows import reward_spec_of, suggested_environment
from schemas.rows.response_rows import PARAMS, as_prompt_row, params_problems

Row = dict[str, Any]
_MEDIA_FIELDS = ("prompt_id", "media_refs", "media")


@dataclass(frozen=True)
class Conversion:
    """Settings of a conversion of one file's rows into another's."""

    to: SchemaName
    written_as: RowFormat | None = None
    """The system that wrote them; unset: this project's own kinds."""
    mapping: ColumnMap = field(default_factory=lambda: ColumnMap({}))
    """Columns of a dataset that is none of these."""
    env_class: str | None = None
    """Environment of prompt rows that name none."""
    prompt_key: str = "prompt"

    def __post_init__(self) -> None:
        if self.env_class is not None and self.to is SchemaName.PREFERENCE:
            raise RecipeError("--env-class: pairs are not judged by an environment; leave it out")
        if self.env_class is not None:
            kinds_of(spec(self.env_class).load())


def convert_file(source: str | Path, target: Path, how: Conversion, *, force: bool = False) -> int:
    """Write the rows of `source` as rows of another kind.

    Returns: number of rows. Args: target: `.jsonl`, `.json`, or `.parquet` if every column has one
    type. force: overwrite an existing file.
    Raises: DataError naming the first row that cannot be converted or breaks the contract of its
    kind; `target` is then untouched.
    """
    if target.is_dir():
        raise DataError(f"{target}: is a folder; give the name of the file to write")
    if target.exists() and not force:
        raise DataError(
            f"{target}: there is such a file already; write elsewhere, or over it with --force"
        )
    rows = _converted(source, target, how)
    suffix = target.suffix.lower()
    if suffix == ".parquet":
        return write_parquet_rows(list(rows), target)
    if suffix not in (".jsonl", ".json"):
        raise DataError(
            f"{target}: unknown extension {target.suffix!r}; expected .jsonl, .json, .parquet"
        )
    num_rows = 0
    with atomic_writer(target) as file:
        for row in rows:
            if suffix == ".jsonl":
                opening = ""
            elif not num_rows:
                opening = "[\n"
            else:
                opening = ",\n"
            text = json.dumps(row, ensure_ascii=False, default=_refuse)
            file.write(opening + text + ("\n" if suffix == ".jsonl" else ""))
            num_rows += 1
        if suffix == ".json":
            file.write("\n]\n" if num_rows else "[]\n")
    return num_rows


def convert_row(
    row: Mapping[str, object], kind: SchemaName, to: SchemaName, place: str, env_class: str | None
) -> Row:
    """Convert one row to another kind. Args: env_class: of rows that name none. Raises: DataError
    naming `place`."""
    if kind is to and to is not SchemaName.PROMPT:
        return _judged_by(dict(row), env_class if to is SchemaName.RESPONSE else None)
    if SchemaName.PREFERENCE in (kind, to):
        if kind is SchemaName.PREFERENCE:
            said = "it holds two answers: use --to preference"
        else:
            said = "it holds one answer"
        raise DataError(f"{place}: a {kind} row cannot become a {to} row, since {said}")
    prompt_row = _judged_by(_TO_PROMPT[kind](row, place), env_class)
    if to is SchemaName.PROMPT:
        return _complete(prompt_row, place)
    return _FROM_PROMPT[to](prompt_row, place)


def _converted(source: str | Path, target: Path, how: Conversion) -> Iterator[Row]:
    allowed = dict(accepted_ground_truths())
    contract = contract_of(how.to, target, allowed, how.env_class, texts_alone=True)
    for file in data_files(source):
        foreign = how.written_as is not None or how.mapping
        kind = None if foreign else recognise(file, prompt_key=how.prompt_key)
        rows = source_rows(file, how.mapping, how.prompt_key)
        if how.to is SchemaName.PREFERENCE:
            rows = paired(rows, str(file), raise_it)
        for raw in rows:
            place = f"{file}:{raw.number}"
            row = convert_row(*_own_row(raw.value, kind, how, place), how.to, place, how.env_class)
            if isinstance(env_class := row.get("env_class"), str):
                # A user's own environment is known to the recipe that names it.
                allowed.setdefault(env_class, frozenset(GROUND_TRUTH_KINDS))
            if problems := contract.problems(row):
                raise DataError(problems[0].at(place))
            yield row


def _own_row(
    value: Any, kind: SchemaName | None, how: Conversion, place: str
) -> tuple[Row, SchemaName]:
    """Return a row of this project and its kind.

    Args: kind: of the file, if its rows are this project's own.
    """
    row = {"prompt": value} if isinstance(value, str) else dict(value)
    if how.prompt_key != "prompt" and how.prompt_key in row:
        row["prompt"] = row.pop(how.prompt_key)
    if kind is not None:
        return row, kind
    made = row if how.written_as is None else own_row(row, how.written_as, place)
    made = normalise(mapped_row(how.mapping, row, place, over=made))
    return made, SchemaName.PREFERENCE if "chosen" in made else SchemaName.PROMPT


def _prompt_to_prompt(row: Mapping[str, object], _place: str) -> Row:
    return normalise(dict(row))


def _media_to_prompt(row: Mapping[str, object], place: str) -> Row:
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


def _response_to_prompt(row: Mapping[str, object], place: str) -> Row:
    if problems := params_problems(get(row, PARAMS)):
        raise DataError(problems[0].at(place))
    made = as_prompt_row(row)
    if any(not isinstance(one.get("content"), str) or "role" not in one for one in made["prompt"]):
        raise DataError(
            f"{place} field {PARAMS}.input: holds more than texts, which a prompt row cannot keep"
        )
    return made


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


def _judged_by(row: Row, env_class: str | None) -> Row:
    named = env_class is None or get(row, "env_class") is not None
    if named:
        return row
    return {**row, "env_class": env_class}


def _complete(row: Row, place: str) -> Row:
    """Return a prompt row that has environment and reward specification. Raises: DataError naming
    what is missing."""
    if get(row, "env_class") is None:
        raise DataError(
            f"{place} field env_class: missing; name the environment of these rows with "
            "--env-class" + suggested_environment(row)
        )
    if reward_spec_of(row) is None:
        raise DataError(
            f"{place} field reward_spec: missing, and no expected_answer to make it from"
        )
    return row


def _refuse(value: object) -> object:
    raise DataError(
        f"a value of type {type(value).__name__} cannot be written as JSON; convert to .parquet"
    )


_TO_PROMPT: dict[SchemaName, Callable[[Mapping[str, object], str], Row]] = {
    SchemaName.PROMPT: _prompt_to_prompt,
    SchemaName.MEDIA: _media_to_prompt,
    SchemaName.RESPONSE: _response_to_prompt,
}
_FROM_PROMPT: dict[SchemaName, Callable[[Row, str], Row]] = {
    SchemaName.MEDIA: _prompt_to_media,
    SchemaName.RESPONSE: _prompt_to_response,
}
