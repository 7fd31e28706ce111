"""Screening of prompt rows in Arrow columns, without creating Python objects.

Each rule becomes a small column of facts (number of user messages with text, kind of ground
truth); one lazy pandera schema over these facts selects the rows that may be wrong. Only they are
converted to Python rows and checked by the row contract, so the screen may be stricter than the
contract, never laxer. A column of an unknown type sends every row there.
"""

from typing import TYPE_CHECKING, Any

from rl_core.data.read.files.arrow import compute
from schemas.rows.contract import failing_rows
from schemas.rows.ground_truth import GROUND_TRUTH_KINDS, AllowedEnvClasses
from schemas.rows.messages import MESSAGES_AS_TEXT
from schemas.rows.prompt_rows import ROLES
from schemas.rows.response_rows import PARAMS

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    import pandera.pandas as pa_schema
    import pyarrow as pa

NO_KIND = "none"
SPACES = "".join(filter(str.isspace, map(chr, range(0x3001))))
"""Every character that `str.strip` removes."""
_KINDS = (*GROUND_TRUTH_KINDS, NO_KIND)


def suspicious_rows(
    batch: "pa.RecordBatch",
    allowed: AllowedEnvClasses,
    default_env_class: str | None,
    prompt_key: str = "prompt",
) -> list[int]:
    """Return the positions of the rows that only the contract can judge; all others are good."""
    import pyarrow as pa

    try:
        # Strings in Parquet are taken on trust until somebody makes text of them.
        batch.validate(full=True)
    except pa.ArrowInvalid:
        return list(range(batch.num_rows))
    frame = facts(batch, default_env_class, prompt_key)
    return failing_rows(facts_schema(allowed), frame)


def facts_schema(allowed: AllowedEnvClasses) -> "pa_schema.DataFrameSchema":
    """Return the schema of the facts of good rows."""
    import pandera.pandas as pa_schema

    accepted = [f"{env}/{kind}" for env, kinds in allowed.items() for kind in kinds]
    check, column = pa_schema.Check, pa_schema.Column
    return pa_schema.DataFrameSchema(
        {
            "num_bad_messages": column(int, check.eq(0)),
            "num_user_messages": column(int, check.ge(1)),
            "env_class": column("category", check.isin(list(allowed)), nullable=False),
            "env_class_and_ground_truth": column("category", check.isin(accepted), nullable=False),
            "well_typed": column(bool, check.eq(True)),
        }
    )


def facts(
    batch: "pa.RecordBatch", default_env_class: str | None, prompt_key: str
) -> "pd.DataFrame":
    """Return the facts of a batch, one row each."""
    import numpy as np
    import pandas as pd

    num_rows = batch.num_rows
    columns = {str(name): batch.column(i) for i, name in enumerate(batch.schema.names)}
    bad, users = _messages(columns.get(prompt_key, columns.get("prompt")), num_rows)
    env_codes, envs = _env_classes(columns.get("env_class"), default_env_class, num_rows)
    spec = _reward_spec(columns)
    if spec is None:
        kinds = np.full(num_rows, _KINDS.index(NO_KIND))
    else:
        kinds = _kinds(_child(spec, "ground_truth"))
    pairs = [f"{env}/{kind}" for env in envs for kind in _KINDS]
    pair_codes = np.where(env_codes < 0, -1, env_codes * len(_KINDS) + kinds)
    return pd.DataFrame(
        {
            "num_bad_messages": bad,
            "num_user_messages": users,
            "env_class": pd.Categorical.from_codes(env_codes, envs),
            "env_class_and_ground_truth": pd.Categorical.from_codes(pair_codes, pairs),
            "well_typed": _well_typed(columns, num_rows),
        }
    )


def _messages(prompts: "pa.Array | None", num_rows: int) -> "tuple[np.ndarray, np.ndarray]":
    """Count the bad and the user messages of each prompt; a prompt of an unknown type is one bad
    message."""
    import numpy as np
    import pyarrow as pa

    pc = compute()
    ones, zeros = np.ones(num_rows, np.int64), np.zeros(num_rows, np.int64)
    if prompts is None:
        return zeros, zeros
    if is_text(prompts.type):
        texts = _plain(prompts)
        messages = _mask(pc.fill_null(pc.match_substring_regex(texts, MESSAGES_AS_TEXT), False))
        return zeros, (_says_something(prompts) & ~messages).astype(np.int64)
    if not has_messages(prompts.type):
        return ones, zeros
    messages = pc.list_flatten(prompts)
    roles, contents = (
        _plain(pc.struct_field(messages, "role")),
        pc.struct_field(messages, "content"),
    )
    parents = pc.list_parent_indices(prompts).to_numpy(zero_copy_only=False)
    known = pc.fill_null(pc.is_in(roles, value_set=pa.array(ROLES, roles.type)), False)
    bad = ~_mask(pc.and_(known, pc.is_valid(contents)))
    users = _mask(pc.fill_null(pc.equal(roles, "user"), False)) & _says_something(contents)
    return (
        np.bincount(parents[bad], minlength=num_rows).astype(np.int64),
        np.bincount(parents[users], minlength=num_rows).astype(np.int64),
    )


def _env_classes(
    column: "pa.Array | None", default: str | None, num_rows: int
) -> "tuple[np.ndarray, list[str]]":
    """Return codes into a list of names; -1 where a row names none and there is no default."""
    import numpy as np

    pc = compute()
    if column is None or not is_text(column.type):
        known = column is None or column.null_count == num_rows
        code = 0 if known and default is not None else -1
        return np.full(num_rows, code), [default] if default is not None else []
    encoded = pc.dictionary_encode(column) if not hasattr(column, "indices") else column
    names = list(encoded.dictionary.to_pylist())  # pyright: ignore[reportAttributeAccessIssue]
    codes = pc.fill_null(encoded.indices.cast("int64"), -1).to_numpy()
    if default is not None:
        names = names if default in names else [*names, default]
        codes = np.where(codes < 0, names.index(default), codes)
    return codes, names


def _reward_spec(columns: "dict[str, pa.Array]") -> "pa.Array | None":
    import pyarrow as pa

    spec = columns.get("reward_spec", columns.get("reward_model"))
    if spec is not None and pa.types.is_struct(spec.type):
        return spec
    return None


def _kinds(truths: "pa.Array | None") -> "np.ndarray | int":
    """Return the kind of each ground truth, as a position in `_KINDS`."""
    import numpy as np
    import pyarrow as pa

    pc = compute()
    if truths is None:
        return _KINDS.index(NO_KIND)
    kind, good = NO_KIND, pc.is_valid(truths)
    if is_text(truths.type):
        kind, good = "string", pa.array(_says_something(truths))
    elif _is_number(truths.type):
        kind, good = "number", pc.fill_null(pc.is_finite(truths), False)
    elif _is_list(truths.type):
        value_type = truths.type.value_type
        kind = "test_cases" if pa.types.is_struct(value_type) else NO_KIND
        kind = "list" if is_text(value_type) or pa.types.is_integer(value_type) else kind
        parents = pc.list_parent_indices(truths).to_numpy(zero_copy_only=False)
        nulls = np.zeros(len(truths), bool)
        items = pc.list_flatten(truths)
        empty = ~_says_something(items) if is_text(value_type) else _mask(pc.is_null(items))
        nulls[parents[empty]] = True
        good = pc.and_(
            pc.fill_null(pc.greater(pc.list_value_length(truths), 0), False), pa.array(~nulls)
        )
    elif pa.types.is_struct(truths.type) and [field.name for field in truths.type] == ["target"]:
        return _kinds(_child(truths, "target"))
    return np.where(_mask(good), _KINDS.index(kind), _KINDS.index(NO_KIND))


def _well_typed(columns: "dict[str, pa.Array]", num_rows: int) -> "np.ndarray":
    """Return a mask of the rows whose optional columns have the right types, as far as Arrow's
    types tell."""
    import numpy as np
    import pyarrow as pa

    pc = compute()
    good = np.ones(num_rows, bool)
    for name in ("data_source", "ability"):
        column = columns.get(name)
        if column is not None and not is_text(column.type):
            good &= _mask(pc.is_null(column))
    extra = columns.get("extra_info")
    if extra is not None and not pa.types.is_struct(extra.type):
        good &= _mask(pc.is_null(extra))
    for name in ("images", PARAMS):
        if (column := columns.get(name)) is not None:
            good &= _mask(pc.is_null(column))
    turns = (columns.get("max_turns"), None if extra is None else _child(extra, "max_turns"))
    for column in turns:
        if column is not None:
            fits = pa.types.is_integer(column.type)
            good &= _mask(
                pc.fill_null(pc.greater_equal(column, 1), True) if fits else pc.is_null(column)
            )
    return good


def _child(struct: "pa.Array", name: str) -> "pa.Array | None":
    """Return a field of a struct column, null where the struct is null."""
    import pyarrow as pa

    pc = compute()
    if not pa.types.is_struct(struct.type) or name not in [field.name for field in struct.type]:
        return None
    child: Any = pc.struct_field(struct, name)
    return child


def has_messages(type_: "pa.DataType") -> bool:
    """Return True if values of this type are lists of messages with a role and a content that are
    texts."""
    import pyarrow as pa

    if not (_is_list(type_) and pa.types.is_struct(type_.value_type)):
        return False
    types = {field.name: field.type for field in type_.value_type}
    return all(name in types and is_text(types[name]) for name in ("role", "content"))


def is_text(type_: "pa.DataType") -> bool:
    """Return True if values of this type are strings."""
    import pyarrow.types as types

    plain = types.is_string(type_) or types.is_large_string(type_) or types.is_string_view(type_)
    return plain or (types.is_dictionary(type_) and is_text(type_.value_type))


def _plain(values: Any) -> "pa.Array":
    """Return a column of categories (pandas writes them) as the texts that they stand for."""
    import pyarrow.types as types

    if types.is_dictionary(values.type):
        return values.cast(values.type.value_type)
    return values


def _is_number(type_: "pa.DataType") -> bool:
    import pyarrow.types as types

    return types.is_integer(type_) or types.is_floating(type_)


def _is_list(type_: "pa.DataType") -> bool:
    import pyarrow.types as types

    return types.is_list(type_) or types.is_large_list(type_)


def _says_something(texts: "pa.Array") -> "np.ndarray":
    """Return a mask of the texts with a visible character, as Python's `strip` has it."""
    import pyarrow as pa

    pc = compute()
    if pa.types.is_dictionary(texts.type):
        texts = texts.cast(texts.type.value_type)
    if pa.types.is_string_view(texts.type):
        texts = texts.cast(pa.string())
    return _mask(pc.fill_null(pc.greater(pc.binary_length(pc.utf8_ltrim(texts, SPACES)), 0), False))


def _mask(values: Any) -> "np.ndarray":
    return values.to_numpy(zero_copy_only=False)
