"""Validation on a cluster: each part of each file is a row of a Ray Data dataset, and its findings
the result.

A node that does not see a file leaves its parts to the driver. Findings come back in the order of
the parts, so the report is the same as on a single machine.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from rl_core.data.check.files import Runner
from rl_core.data.check.parts import Checked, CheckSettings, Part, check_part
from rl_core.errors import DataError
from schemas.receipts import Rejection

_REJECTIONS = TypeAdapter(list[Rejection])
_NOT_HERE = "not here"
"""Mark in place of an error: the node does not see the part's file."""


def cluster_runner(address: str) -> Runner:
    """Return a runner that checks parts on the cluster at `address`."""

    def run(parts: Sequence[Part], settings: CheckSettings) -> Iterator[tuple[Part, Checked]]:
        from rl_core.distributed.cluster import ray_cluster

        if parts:
            with ray_cluster(address, 1, "cpu"):
                yield from _run(parts, settings)

    return run


def _run(parts: Sequence[Part], settings: CheckSettings) -> Iterator[tuple[Part, Checked]]:
    import ray
    import ray.data

    with warnings.catch_warnings():
        # Ray 2.60 sets its own deprecated options when it makes the first context.
        warnings.simplefilter("ignore", DeprecationWarning)
        ray.data.DataContext.get_current()
    check = _CheckPart(list(parts), settings)
    dataset = ray.data.range(len(parts), override_num_blocks=len(parts))
    # Blocks would otherwise come back as they are finished.
    dataset.context.execution_options.preserve_order = True
    dataset.context.enable_progress_bars = False
    for found in dataset.flat_map(check).iter_rows():
        if found["error"] == _NOT_HERE:
            yield from _checked_here(parts[found["part"]], settings)
            continue
        if found["error"]:
            raise DataError(found["error"])
        rejections, warned = (
            _REJECTIONS.validate_json(found[name]) for name in ("rejections", "warnings")
        )
        counts = found["num_rows"], found["num_rejected"]
        untried = json.loads(found["untried"])
        ids = [(int(number), str(one)) for number, one in json.loads(found["ids"])]
        names_files = bool(found["names_files"])
        yield (
            parts[found["part"]],
            Checked(*counts, rejections, warned, untried, ids, names_files),
        )


def _checked_here(part: Part, settings: CheckSettings) -> Iterator[tuple[Part, Checked]]:
    with settings.row_trials(num_workers=1) as trials:
        for checked in check_part(part, settings, trials, num_threads=1):
            yield part, checked


@dataclass
class _CheckPart:
    """Checks a part on a worker, on the one core that Ray Data assigns."""

    parts: list[Part]
    settings: CheckSettings

    def __call__(self, row: dict[str, int]) -> list[dict[str, object]]:
        index = int(row["id"])
        found: list[dict[str, object]] = []
        if not Path(self.parts[index].file).exists():
            return [_packed(index, Checked(0, 0, []), _NOT_HERE)]
        try:
            with self.settings.row_trials(num_workers=1) as trials:
                part = self.parts[index]
                for checked in check_part(part, self.settings, trials, num_threads=1):
                    found.append(_packed(index, checked))
        except DataError as error:  # what the user can put right; all else is Ray's to report
            found.append(_packed(index, Checked(0, 0, []), str(error)))
        return found


def _packed(index: int, checked: Checked, error: str = "") -> dict[str, object]:
    return {
        "part": index,
        "num_rows": checked.num_rows,
        "num_rejected": checked.num_rejected,
        "rejections": _REJECTIONS.dump_json(checked.rejections),
        "warnings": _REJECTIONS.dump_json(checked.warnings),
        "untried": json.dumps(checked.untried),
        "ids": json.dumps(checked.ids),
        "names_files": checked.names_files,
        "error": error,
    }
