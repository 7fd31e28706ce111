"""Files of a checkpoint that every rank writes and reads, in a folder or in an object store."""

from __future__ import annotations

import io
from pathlib import Path
from typing import IO

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter

from rl_core.errors import RLTrainError, StorageError
from rl_core.runtime.storage import RemoteFolder, error_of, place_of


class LocalFiles:
    """Files of a checkpoint in a folder of a file system that all ranks see."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __str__(self) -> str:
        return str(self._folder)

    def write(self, name: str, content: bytes) -> None:
        """Write a file. Raises: OSError."""
        (self._folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self._folder / name).write_bytes(content)

    def has(self, name: str) -> bool:
        """Return True if the file is there."""
        return (self._folder / name).is_file()

    def open(self, name: str) -> IO[bytes]:
        """Open a file to read from. Raises: OSError."""
        return (self._folder / name).open("rb")

    def not_written(self, error: BaseException) -> RLTrainError:
        """Return the error that stands for what a write raised."""
        return StorageError(
            f"checkpoint {self} could not be written ({_last_line(error)}); free some space or set "
            "RL_TRAIN_HOME to a larger disk, then run again: training continues from the last "
            "complete checkpoint"
        )

    def not_read(self, error: BaseException) -> RLTrainError:
        """Return the error that stands for what a read raised."""
        return StorageError(f"checkpoint {self} cannot be read: {_last_line(error)}")

    def writer(self, name: str) -> FileSystemWriter:
        """Return the writer of sharded tensors into a folder."""
        return FileSystemWriter(self._folder / name)

    def reader(self, name: str) -> FileSystemReader:
        """Return the reader of sharded tensors from a folder."""
        return FileSystemReader(self._folder / name)


class RemoteFiles:
    """Files of a checkpoint in an object store. Raises StorageError or Unreachable when the store
    refuses or does not answer."""

    def __init__(self, folder: RemoteFolder) -> None:
        self._folder = folder

    def __str__(self) -> str:
        return str(self._folder)

    def write(self, name: str, content: bytes) -> None:
        """Store a file, whole."""
        self._folder.write(name, content)

    def has(self, name: str) -> bool:
        """Return True if the file is there."""
        return self._folder.exists(name)

    def open(self, name: str) -> IO[bytes]:
        """Read a file into memory and open it."""
        return io.BytesIO(self._folder.read(name))

    def not_written(self, error: BaseException) -> RLTrainError:
        """Return the error that stands for what a write raised, on whichever rank."""
        return error_of(f"checkpoint {self} could not be written", _first(error), StorageError)

    def not_read(self, error: BaseException) -> RLTrainError:
        """Return the error that stands for what a read raised, on whichever rank."""
        return error_of(f"checkpoint {self} cannot be read", _first(error), StorageError)

    def writer(self, name: str) -> FileSystemWriter:
        """Return the writer of sharded tensors into a folder of the store."""
        from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter

        return FsspecWriter(str(self._folder / name))

    def reader(self, name: str) -> FileSystemReader:
        """Return the reader of sharded tensors from a folder of the store; it fetches the parts
        that a rank needs."""
        from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader

        return FsspecReader(str(self._folder / name))


def _last_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[-1]


def _first(error: BaseException) -> BaseException:
    """Return what a rank raised, if the error tells what several did."""
    if isinstance(error, CheckpointException):
        failures = [failure[0] for failure in error.failures.values()]
        first = next(iter(failures), None)
        return first or error
    return error


def shard_files(folder: str | Path) -> LocalFiles | RemoteFiles:
    """Return the files of the checkpoint at a path or an address."""
    place = place_of(str(folder))
    if isinstance(place, RemoteFolder):
        return RemoteFiles(place)
    return LocalFiles(place)
