"""A batch in a file."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

from rl_core.data_proto.errors import DataProtoError


def save(data: Any, filepath: str | os.PathLike[str]) -> None:
    """Write to a temporary name beside the file, sync, rename: a reader finds the old file or the whole new one."""
    path = Path(filepath)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unfinished.open("wb") as file:
            pickle.dump(data, file, protocol=5)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def load(filepath: str | os.PathLike[str]) -> Any:
    """The object a file holds. Raises: DataProtoError unless it is a whole DataProto."""
    from rl_core.data_proto.proto import DataProto

    with Path(filepath).open("rb") as file:
        try:
            data = pickle.load(file)
        except (pickle.UnpicklingError, EOFError) as error:
            raise DataProtoError(f"{filepath} is not a whole DataProto: {error}") from error
    if not isinstance(data, DataProto):
        raise DataProtoError(f"{filepath} holds a {type(data).__name__}, not a DataProto")
    return data
