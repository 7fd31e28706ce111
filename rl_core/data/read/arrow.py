"""`pyarrow.compute`, whose functions are made when it is imported and so unknown to a type checker."""

from typing import Any


def compute() -> Any:
    """The module."""
    import pyarrow.compute

    return pyarrow.compute
