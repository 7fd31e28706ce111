"""Keys of a home folder: what its servers ask for, and its own processes and commands give.

Each home has one secret, in a file that only its owner reads. Every server has a key of its own,
which is computed from that secret and tells nothing about it or about the other keys.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from contextlib import suppress
from pathlib import Path

from rl_core.errors import StorageError

SECRET_FILE = "secret"
SECRET_BYTES = 32
KEY_CHARS = 32
PREFECT_USER = "rl-train"
REWARD_SERVER = "rewards"
MLFLOW_SERVER = "mlflow"
DEMO_SERVER = "demo"


def key_of(root: Path, server: str) -> str:
    """Return the key of a kind of server in the home `root`; the home's secret is made if there is
    none. Raises: StorageError when it can be neither read nor written."""
    secret = _secret(root / SECRET_FILE)
    return hmac.new(secret.encode(), server.encode(), hashlib.sha256).hexdigest()[:KEY_CHARS]


def prefect_password(root: Path) -> str:
    """Return `user:password` of the home's Prefect servers: the one that the user set, or the
    home's own. Raises: StorageError as `key_of` does."""
    return (
        os.environ.get("PREFECT_SERVER_API_AUTH_STRING")
        or os.environ.get("PREFECT_API_AUTH_STRING")
        or f"{PREFECT_USER}:{key_of(root, 'prefect')}"
    )


def _secret(path: Path) -> str:
    try:
        if not path.exists():
            _write_once(path)
        found = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StorageError(f"cannot read or write {path} ({error}); remove it") from error
    if len(found) != 2 * SECRET_BYTES:
        # Keys of an empty secret would be known to everybody.
        raise StorageError(
            f"cannot use {path}: it holds {len(found)} characters, where {2 * SECRET_BYTES} were "
            "written; stop the services and remove it"
        )
    return found


def _write_once(path: Path) -> None:
    """Write the file whole, or leave the one that another process wrote meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(SECRET_BYTES))
        with suppress(FileExistsError):
            os.link(part, path)
    finally:
        part.unlink()
