"""Log-probabilities of the reference for prepared pairs, computed once and cached under their
content hash.

`values.f32` holds one float32 per answer token, pair by pair, the chosen answer first, and is
memory-mapped; `offsets.npy` [2N + 1] holds the start of each answer.
"""

import hashlib
import json
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from rl_core.data.prepare.fingerprint import run_hash
from rl_core.data.prepare.job import Job, run_job
from rl_core.data.store.key_table import UidPlaces
from rl_core.data.store.publish import HASH_CHARS, Built
from rl_core.errors import DataError

VALUES, OFFSETS = "values.f32", "offsets.npy"
Answers = tuple[Sequence[float], Sequence[float]]


class ReferenceStore:
    """Log-probabilities of both answers by the uid of their pair."""

    def __init__(self, folder: Path, uids: Sequence[str]) -> None:
        self._offsets = np.load(folder / OFFSETS)
        size = (folder / VALUES).stat().st_size
        if size:
            self._values = np.memmap(folder / VALUES, np.float32, "r")
        else:
            self._values = np.zeros(0, np.float32)
        if len(self._offsets) != 2 * len(uids) + 1 or size != 4 * int(self._offsets[-1]):
            raise DataError(
                f"{folder}: does not hold the {len(uids)} pairs it was made for; remove it"
            )
        self._place = UidPlaces(uids)

    def __contains__(self, uid: object) -> bool:
        return uid in self._place

    def __getitem__(self, uid: str) -> tuple[list[float], list[float]]:
        first = 2 * self._place[uid]
        chosen, rejected = (
            self._values[self._offsets[at] : self._offsets[at + 1]].tolist()
            for at in (first, first + 1)
        )
        return chosen, rejected


def open_store(
    cache_root: Path,
    parts: Mapping[str, str],
    uids: Sequence[str],
    compute: Callable[[], Iterator[Answers]],
) -> ReferenceStore:
    """Return the store for these pairs, computed if it does not exist.

    Args: parts: inputs of the numbers besides the pairs: the model, its format, the tokens.
    compute: yields the answers' log-probabilities in the order of `uids`.
    """
    parts = {**parts, "pairs": _digest_of(uids)}
    folder = cache_root / f"reference-{run_hash(parts)[:HASH_CHARS]}"
    job = Job("reference", folder, parts, [], hashed_folder=True)
    run_job(job, lambda work: _build(work, compute()))
    return ReferenceStore(job.target, uids)


def _digest_of(uids: Sequence[str]) -> str:
    """Return `run_hash({"uids": "\\n".join(uids)})` without joining millions of them."""
    digest = hashlib.sha256(b'{"uids": "')
    for place, uid in enumerate(uids):
        digest.update(json.dumps(f"\n{uid}" if place else uid)[1:-1].encode())
    digest.update(b'"}')
    return digest.hexdigest()


def _build(work: Path, answers: Iterator[Answers]) -> Built:
    offsets = array("q", [0])
    with (work / VALUES).open("wb") as file:
        for pair in answers:
            for values in pair:
                file.write(np.asarray(values, dtype=np.float32).tobytes())
                offsets.append(offsets[-1] + len(values))
    np.save(work / OFFSETS, np.frombuffer(offsets, dtype=np.int64))
    return Built({"pairs": (len(offsets) - 1) // 2, "tokens": offsets[-1]})
