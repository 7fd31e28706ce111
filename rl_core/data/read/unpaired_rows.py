"""Rows of one answer and whether it is good (`prompt`, `completion`, `label`, as KTO trains on), as
pairs where a good and a bad answer share a prompt."""

import hashlib
import json
from array import array
from collections.abc import Iterator, Mapping
from typing import Any

from rl_core.data.read.files.text_files import OnBadLine, RawValue
from rl_core.data.store.spool import Spool
from rl_core.errors import DataError
from schemas.rows.preference_shapes import CHOSEN, REJECTED
from schemas.rows.problems import get


def paired(rows: Iterator[RawValue], place: str, on_bad_line: OnBadLine) -> Iterator[RawValue]:
    """Yield the rows of a file, its unpaired ones as pairs numbered like the good answer.

    The first good and the first bad answer to a prompt make a pair, then the second ones; a row
    that is left over goes to `on_bad_line`. Unpaired rows wait in a temporary file; memory holds
    some 30 bytes of each.
    """
    answers = _Answers()
    for raw in rows:
        if not _is_unpaired(raw.value):
            yield raw
            continue
        label = raw.value["label"]
        if not isinstance(label, bool) and label not in (0, 1):
            on_bad_line(raw.number, _error(place, raw, f"label {label!r}; expected true or false"))
            continue
        answers.add(raw)
    for sides in answers.by_prompt():
        for good, bad in zip(sides[True], sides[False], strict=False):
            row = {key: item for key, item in good.value.items() if key not in _OF_ONE}
            row |= {"chosen": good.value["completion"], "rejected": bad.value["completion"]}
            yield RawValue(good.number, row, good.num_bytes + bad.num_bytes)
        num_pairs = min(map(len, sides.values()))
        for raw in sides[True][num_pairs:] + sides[False][num_pairs:]:
            other = "bad" if raw.value["label"] else "good"
            said = f"one answer, and no {other} one to the same prompt to compare it with"
            on_bad_line(raw.number, _error(place, raw, said))


_OF_ONE = ("completion", "label")


class _Answers:
    """Unpaired rows on disk, with a digest of each one's prompt."""

    def __init__(self) -> None:
        self._rows: Spool[RawValue] | None = None
        self._digests = array("Q")

    def add(self, raw: RawValue) -> None:
        """Keep a row."""
        if self._rows is None:
            self._rows = Spool()
        prompt = json.dumps(get(raw.value, "prompt"), sort_keys=True, default=str)
        self._digests.frombytes(hashlib.blake2b(prompt.encode(), digest_size=16).digest())
        self._rows.append(raw)

    def by_prompt(self) -> Iterator[dict[bool, list[RawValue]]]:
        """Yield the good and the bad answers to each prompt, in the order in which the prompts
        first came."""
        if self._rows is None:
            return
        import numpy as np

        words = np.frombuffer(self._digests, np.uint64)
        order = np.lexsort((words[0::2], words[1::2]))
        differs = np.ones(len(order), bool)
        differs[1:] = (words[0::2][order[1:]] != words[0::2][order[:-1]]) | (
            words[1::2][order[1:]] != words[1::2][order[:-1]]
        )
        starts = np.flatnonzero(differs)
        # The sort is stable, so the first row of a prompt's run is its first in the file.
        ends = np.append(starts[1:], len(order))
        for prompt in order[starts].argsort():
            sides: dict[bool, list[RawValue]] = {True: [], False: []}
            for place in order[starts[prompt] : ends[prompt]]:
                raw = self._rows.item(int(place))
                sides[bool(raw.value["label"])].append(raw)
            yield sides


def _is_unpaired(value: Any) -> bool:
    whole = isinstance(value, Mapping) and {"completion", "label"} <= value.keys()
    return whole and not {*CHOSEN, *REJECTED} & value.keys()


def _error(place: str, raw: RawValue, said: str) -> DataError:
    return DataError(f"{place}:{raw.number}: {said}")
