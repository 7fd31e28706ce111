"""Comparison of a class with the protocol of a part, without building it.

Methods are compared by name, by how they are called and by `@distributed`. Attributes that an
instance gets in its `__init__` cannot be seen on a class.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Generic, Protocol

from rl_core.ranks.dispatch import CallSpec, spec_of

_NO_CONTRACT = (object, Protocol, Generic)


def shortcomings(cls: type, contract: type) -> list[str]:
    """Return a phrase for each member of the contract that a class lacks or has otherwise."""
    found = []
    for name, wanted in members(contract).items():
        if isinstance(wanted, bool):
            if getattr(cls, name, None) is not wanted:
                found.append(f"{name} is not {wanted}")
        elif name == "__init__":
            found += _cannot_be_built(cls, wanted)
        else:
            found += _differs(cls, contract, name, wanted)
    return found


def members(contract: type) -> dict[str, Callable[..., object] | bool]:
    """Return the methods and flags of a protocol by name, `__init__` among them if it has one."""
    found: dict[str, Callable[..., object] | bool] = {}
    for base in reversed(contract.__mro__):
        if base not in _NO_CONTRACT:
            found |= {
                name: value
                for name, value in vars(base).items()
                if (isinstance(value, FunctionType) and _is_stated(name, value))
                or (isinstance(value, bool) and not name.startswith("_"))
            }
    return found


def _is_stated(name: str, value: FunctionType) -> bool:
    """Return True if a protocol's own text defines the function; typing adds an `__init__`."""
    if name == "__init__":
        return value.__module__ != "typing"
    return not name.startswith("_")


def _differs(cls: type, contract: type, name: str, wanted: Callable[..., object]) -> list[str]:
    method = inspect.getattr_static(cls, name, None)
    shape = f"{name}{_without_self(inspect.signature(wanted))}"
    if method is None:
        return [f"it has no method {shape}"]
    method = getattr(cls, name)
    if not callable(method):
        return [f"{name} is no method, but {shape} is called"]
    if problem := _refuses(inspect.signature(method), inspect.signature(wanted)):
        return [f"{shape} is called, and {name} does not take that ({problem})"]
    spec = spec_of(contract, name)
    if spec != spec_of(cls, name):
        return [f"{name} has to be {_decorator(spec)}"]
    return []


def _cannot_be_built(cls: type, wanted: Callable[..., object]) -> list[str]:
    signature = inspect.signature(wanted)
    extra = []
    if getattr(cls, "needs_rank_info", False):
        extra.append("rank_info")
    if hasattr(cls, "Config"):
        extra.append("settings")
    own = inspect.signature(cls.__init__)
    if problem := _refuses(own, signature, *extra):
        called = _without_self(signature)
        also = f" and {', '.join(extra)}" if extra else ""
        return [f"it is built with {called}{also}, which its __init__ does not take ({problem})"]
    return []


def _refuses(own: inspect.Signature, wanted: inspect.Signature, *extra: str) -> str:
    """Return why a function cannot be called as another is; empty if it can."""
    kinds = inspect.Parameter
    parameters = list(wanted.parameters.values())
    if any(one.kind is kinds.VAR_POSITIONAL for one in parameters):
        return ""
    positional = []
    for one in parameters:
        if one.kind is kinds.POSITIONAL_OR_KEYWORD:
            positional.append(one.name)
    named = [one.name for one in parameters if one.kind is kinds.KEYWORD_ONLY]
    try:
        own.bind(*positional, **dict.fromkeys([*named, *extra]))
    except TypeError as error:
        return str(error)
    return ""


def _without_self(signature: inspect.Signature) -> str:
    """Return the names that a method is called with, as `(a, b, *, c)`."""
    kinds = inspect.Parameter
    shown, starred = [], False
    for one in list(signature.parameters.values())[1:]:
        if one.kind is kinds.KEYWORD_ONLY and not starred:
            shown.append("*")
            starred = True
        shown.append(f"*{one.name}" if one.kind is kinds.VAR_POSITIONAL else one.name)
    return f"({', '.join(shown)})"


def _decorator(spec: CallSpec) -> str:
    usual = CallSpec()
    options = []
    for key in ("dispatch", "collect", "execute"):
        if (value := getattr(spec, key)) != getattr(usual, key):
            options.append(f"{key}={type(value).__name__}.{value.name}")
    if options:
        return f"@distributed({', '.join(options)})"
    return "undecorated"
