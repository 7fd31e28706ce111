"""Check that a class keeps what one of its bases declares about its methods.

A base may declare that one method gives the same as another. A class derived from it that writes
the other anew has not declared that for its own.
"""

from __future__ import annotations


def redefines(cls: type, declared: str, *methods: str) -> bool:
    """Return True if one of these methods is written by a class that derives from the one that
    declared.

    Args: declared: name of an attribute of `cls` that speaks for the methods.
    """
    return any(_depth(cls, method) < _depth(cls, declared) for method in methods)


def _depth(cls: type, name: str) -> int:
    """Return the place in the order of bases of the class that defines a name."""
    return next(place for place, base in enumerate(cls.__mro__) if name in vars(base))
