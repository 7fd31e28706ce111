"""Rows of one answer and whether it is good (`prompt`, `completion`, `label`, as KTO trains on), as
pairs where a good and a bad answer share a prompt."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from rl_core.data.read.text_files import OnBadLine, RawValue
from rl_core.errors import DataError
from schemas.rows.preference_shapes import CHOSEN, REJECTED
from schemas.rows.problems import get


def paired(rows: Iterator[RawValue], place: str, on_bad_line: OnBadLine) -> Iterator[RawValue]:
    """Yield the rows of a file, its unpaired ones as pairs numbered like the good answer.

    The first good and the first bad answer to a prompt make a pair, then the second ones; a row
    that is left over goes to `on_bad_line`. Unpaired rows are held in memory, others are not.
    """
    asked: dict[str, dict[bool, list[RawValue]]] = {}
    for raw in rows:
        if not _is_unpaired(raw.value):
            yield raw
            continue
        label = raw.value["label"]
        if not isinstance(label, bool) and label not in (0, 1):
            on_bad_line(raw.number, _error(place, raw, f"label {label!r}; expected true or false"))
            continue
        prompt = json.dumps(get(raw.value, "prompt"), sort_keys=True, default=str)
        sides = asked.setdefault(prompt, {True: [], False: []})
        sides[bool(label)].append(raw)
    for sides in asked.values():
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


def _is_unpaired(value: Any) -> bool:
    whole = isinstance(value, Mapping) and {"completion", "label"} <= value.keys()
    return whole and not {*CHOSEN, *REJECTED} & value.keys()


def _error(place: str, raw: RawValue, said: str) -> DataError:
    return DataError(f"{place}:{raw.number}: {said}")
