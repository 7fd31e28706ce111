"""Strings beneath the fields of settings, read when the reference is written.

pydantic can read them as it builds a class, which parsed the source of 160 classes at every start
of the command: a quarter of `rl-train run text --dry-run`.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import cache

from pydantic import BaseModel


def about_field(model: type[BaseModel], name: str) -> str:
    """Return the text of a field's `Field(description=...)` or of the string beneath it, in the
    class that declares it; empty if there is none."""
    given = model.model_fields[name].description
    if given is not None:
        return given
    for cls in model.__mro__:
        if name in vars(cls).get("__annotations__", {}):
            return _strings(cls).get(name, "")
    return ""


@cache
def _strings(cls: type) -> dict[str, str]:
    """Return the strings beneath the fields that a class itself declares."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, beneath in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(beneath, ast.Expr)
            and isinstance(beneath.value, ast.Constant)
            and isinstance(beneath.value.value, str)
        ):
            found[field.target.id] = inspect.cleandoc(beneath.value.value)
    return found
