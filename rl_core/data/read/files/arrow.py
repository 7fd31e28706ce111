"""Access to `pyarrow.compute`, whose functions are created on import and therefore unknown to a
type checker."""

from typing import Any


def compute() -> Any:
    """Return the module."""
    import pyarrow.compute

    return pyarrow.compute
