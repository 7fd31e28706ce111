"""Paths as a user types them, with a `~`."""

from pathlib import Path

from rl_core.errors import StorageError


def user_path(text: str | Path) -> Path:
    """Return a path with its `~` or `~name` replaced by that home folder. Raises: StorageError when
    there is no such user."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise StorageError(f"{text}: this machine knows no home folder of that user") from error


def real_path(text: str | Path) -> Path:
    """Return the absolute path without symlinks. Raises: StorageError when these lead in a
    circle, or there is no such user."""
    try:
        return user_path(text).resolve()
    except (RuntimeError, OSError) as error:
        raise StorageError(f"{text!s:.200}: no usable path ({error!s:.200})") from error


def no_file(path: Path | str, beside: Path | None = None) -> str:
    """Say why a path is no file that can be read: what it is instead, or in which folders it was
    looked for.

    Args: beside: the folder of the recipe that names the path.
    """
    found = user_path(path)
    if found.exists():
        if found.is_dir():
            return "is a folder"
        return "no regular file"
    if found.is_absolute():
        return "no such file"
    here = Path.cwd()
    if beside is None or beside.absolute() == here:
        return f"no such file in {here}"
    return f"no such file beside the recipe in {beside.absolute()}, nor in {here}"
