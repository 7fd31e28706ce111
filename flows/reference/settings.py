"""Tables of a settings class: value, default and purpose of each key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from types import NoneType, UnionType
from typing import Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from flows.reference.docstrings import about_field
from flows.reference.markdown import purpose, table

Settings = type[BaseModel]
_BOUNDS = {
    "ge": "≥",
    "gt": ">",
    "le": "≤",
    "lt": "<",
    "min_length": "length ≥",
    "max_length": "length ≤",
}


def keys(
    model: Settings,
    path: str = "",
    described: Mapping[Settings, str] | None = None,
    made: BaseModel | None = None,
) -> str:
    """Return a table with one row per key.

    Args: path: key path of the section. described: sections that are described elsewhere, and their
    key paths. made: the model with no key stated, if it has a preset that its fields do not show.
    """
    prefix = f"{path}." if path else ""
    rows = []
    for name, field in model.model_fields.items():
        rows.append(
            [
                f"`{prefix}{field.alias or name}`",
                _value(field),
                _default(field) if made is None else _shown(getattr(made, name)),
                _about(model, name, f"{prefix}{name}", described or {}),
            ]
        )
    return table(["key", "value", "default", ""], rows)


def sections(annotation: object) -> Iterator[Settings]:
    """Yield the sections that an annotation contains."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for one in get_args(annotation):
        yield from sections(one)


def _about(model: Settings, name: str, path: str, described: Mapping[Settings, str]) -> str:
    inner = next(sections(model.model_fields[name].annotation), None)
    elsewhere = described.get(inner, path) if inner else path
    about = about_field(model, name) or (purpose(inner) if inner else "")
    if elsewhere == path:
        return about
    return f"{about} Keys as in `{elsewhere}`."


def _value(field: FieldInfo) -> str:
    bounds = []
    for one in field.metadata:
        for key, sign in _BOUNDS.items():
            if hasattr(one, key):
                bounds.append(f"{sign} {getattr(one, key)}")
    return ", ".join([_type(field.annotation), *bounds])


def _type(annotation: object) -> str:
    """Describe a type in words."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is NoneType:
        return "unset"
    if origin in (Union, UnionType):
        return " or ".join(map(_type, arguments))
    if origin is Literal:
        return ", ".join(f"`{one}`" for one in arguments)
    if hasattr(annotation, "__metadata__"):
        return _type(arguments[0])
    if arguments:
        inside = ", ".join("…" if one is Ellipsis else _type(one) for one in arguments)
        return f"{getattr(origin, '__name__', origin)} of {inside}"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return ", ".join(f"`{one.value}`" for one in annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    return getattr(annotation, "__name__", str(annotation))


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "must be given"
    return _shown(field.get_default(call_default_factory=True))


def _shown(value: object) -> str:
    if value is None:
        return "unset"
    if isinstance(value, BaseModel):
        # Its keys have a table of their own; here stands what a preset changes of it.
        changed = value.model_dump(mode="json", exclude_defaults=True)
        return f"`{changed}`" if changed else ""
    if value == "":
        return "empty"
    return f"`{value.value if isinstance(value, Enum) else value}`"
