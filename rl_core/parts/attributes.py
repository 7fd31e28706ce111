"""Check of a part's attributes, which only a built object has."""

from __future__ import annotations

from typing import Generic, Protocol

from rl_core.errors import RecipeError


class HasAttributes:
    """Sibling that looks at another one once, where it was built.

    Args: built: a part. contract: its protocol. where: key of its block in the recipe.
    Raises: RecipeError naming the attributes that the part lacks.
    """

    def __init__(self, built: object, contract: type, where: str) -> None:
        if lacking := [name for name in attributes(contract) if not hasattr(built, name)]:
            cls = type(built)
            raise RecipeError(
                f"{where}.target: {cls.__module__}:{cls.__qualname__} sets no "
                f"{', '.join(lacking)} in its __init__, which every {contract.__name__} has; "
                "docs/extending.md has the contract"
            )


def attributes(contract: type) -> list[str]:
    """Return the attributes of an instance that a protocol states by annotation."""
    names: list[str] = []
    for base in contract.__mro__:
        if base not in (object, Protocol, Generic):
            for name, kind in vars(base).get("__annotations__", {}).items():
                if not str(kind).startswith("ClassVar"):
                    names.append(name)
    return names
