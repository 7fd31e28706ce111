"""Content digest of an exported model."""

import hashlib
from pathlib import Path

from rl_core.data.prepare.fingerprint import sha256_file


def weights_digest(folder: Path | str) -> str:
    """Return the sha256 over names and digests of all safetensors files below `folder`; empty if
    there is none.

    Two folders with the same digest hold the same weights bit for bit, whatever their configuration
    files say.
    """
    root = Path(folder)
    files = sorted(root.rglob("*.safetensors"))
    lines = []
    for path in files:
        lines.append(f"{sha256_file(path)} {path.relative_to(root).as_posix()}")
    if lines:
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()
    return ""
