"""Record next to the receipt of the tracking databases that have this result, so that a hit need
not ask them."""

import json
from contextlib import suppress
from pathlib import Path

from rl_core.data.store.atomic import atomic_write_json
from rl_core.data.store.publish import HASH_CHARS, receipts_dir
from rl_core.errors import StorageError
from schemas.receipts import PrepReceipt


def is_registered(receipt: PrepReceipt, tracking_uri: str) -> bool:
    """Return True if the database at `tracking_uri` has a version for this result at this path."""
    return tracking_uri in _known(receipt)


def remember(receipt: PrepReceipt, tracking_uri: str) -> None:
    """Record that the database at `tracking_uri` has this result."""
    # A note only saves time; a read-only disk does without.
    with suppress(StorageError):
        atomic_write_json(_path(receipt), sorted({*_known(receipt), tracking_uri}))


def _known(receipt: PrepReceipt) -> list[str]:
    try:
        found = json.loads(_path(receipt).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return found if isinstance(found, list) else []


def _path(receipt: PrepReceipt) -> Path:
    return receipts_dir(Path(receipt.output)) / f"{receipt.run_hash[:HASH_CHARS]}.registered.json"
