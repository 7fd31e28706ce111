"""Training rows that repeat what the model is measured on: found once for the same files, and then
refused, left out, or reported."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from rl_core.data.overlap.rows import Rows
from rl_core.data.prepare.fingerprint import fingerprint, run_hash
from rl_core.data.store.atomic import atomic_writer
from rl_core.errors import DataError
from schemas.receipts import ContaminationReport, Overlap, OverlapCount, Rejection
from schemas.rows.problems import Problem
from schemas.sections.training import ContaminationPolicy

VERSION = "1"
"""Version of the search, raised whenever the same files would give other rows."""
REASON = "also a held-out row"
LEFT_OUT = "contaminated"
"""Name under which rows that are left out are counted."""
NUM_SHOWN, NUM_LISTED = 3, 10
"""Rows shown of each pair of files, and in the message of an error."""


@dataclass(frozen=True)
class Contamination:
    """Settings of the comparison of training rows with what the model is measured on."""

    policy: ContaminationPolicy = ContaminationPolicy.REPORT
    benchmarks: tuple[Path, ...] = ()
    """Files of benchmarks."""

    def hash_parts(self, memo_dir: Path) -> dict[str, str]:
        """Return what decides about prepared rows: nothing unless rows are left out."""
        if self.policy is not ContaminationPolicy.DROP:
            return {}
        digests = [fingerprint(file, memo_dir).sha256 for file in self.benchmarks]
        return {"contamination": " ".join([f"drop, version {VERSION}", *digests])}


REPORTED = Contamination()
"""The settings of a recipe that says nothing."""


@dataclass
class Overlaps:
    """Training rows that repeat other rows, by file."""

    policy: ContaminationPolicy = ContaminationPolicy.REPORT
    path: Path | None = None
    """JSON Lines file of all that was found; None if nothing was compared."""
    rows: dict[str, set[int]] = field(default_factory=dict)
    verbatim: dict[str, dict[int, tuple[str, str]]] = field(default_factory=dict)
    """Rows that ask a held-out question letter by letter, each with that question and its place."""

    def leaves_out(self, file: Path | str, row: int) -> bool:
        """Return True if a row is not to be trained on, and that is no fault of the file."""
        return self.policy is ContaminationPolicy.DROP and row in self.rows.get(str(file), ())

    def rejections(self, file: Path | str, numbers: Iterable[int]) -> list[Rejection]:
        """Return a rejection for each of these rows that asks a held-out question."""
        known = self.verbatim.get(str(file), {})
        if self.policy is ContaminationPolicy.DROP:
            return []
        found = [(number, *known[number]) for number in numbers if number in known]
        rejected: list[Rejection] = []
        for number, text, place in found:
            rejected.append(
                Problem("prompt", REASON, text, f"a question that is not in {place}").rejection(
                    str(file), number
                )
            )
        return rejected

    def all_rejections(self) -> list[Rejection]:
        """Return a rejection for each row that asks a held-out question."""
        rejected: list[Rejection] = []
        for file, known in self.verbatim.items():
            rejected.extend(self.rejections(file, known))
        return rejected

    def each(self) -> Iterator[Overlap]:
        """Yield all that was found, in the order of the rows."""
        if self.path is not None:
            with self.path.open(encoding="utf-8") as lines:
                yield from map(Overlap.model_validate_json, lines)

    def refuse(self) -> None:
        """Refuse what the policy `fail` does not allow. Raises: DataError naming the rows."""
        if self.policy is ContaminationPolicy.FAIL and self.rows and self.path is not None:
            raise refusal(
                sum(map(len, self.rows.values())), self.each(), f"; all are in {self.path}"
            )

    def report(self, path: Path) -> ContaminationReport:
        """Return a report of what was found, and write all of it to a file."""
        pairs: dict[tuple[str, str], OverlapCount] = {}
        with atomic_writer(path) as lines:
            for one in self.each():
                lines.write(one.model_dump_json() + "\n")
                key = (one.file, one.other_file)
                known = pairs.get(key)
                count, first = (known.count, known.first) if known else (0, [])
                pairs[key] = OverlapCount(
                    file=one.file,
                    other_file=one.other_file,
                    benchmark=one.benchmark,
                    count=count + 1,
                    first=first if len(first) == NUM_SHOWN else [*first, one],
                )
        return ContaminationReport(
            policy=self.policy,
            num_rows=sum(map(len, self.rows.values())),
            pairs=sorted(pairs.values(), key=lambda pair: -pair.count),
            path=str(path),
        )

    def add(self, one: Overlap) -> None:
        """Add what was found."""
        self.rows.setdefault(one.file, set()).add(one.row)
        if one.verbatim and not one.benchmark:
            place = f"{one.other_file}:{one.other_row}"
            self.verbatim.setdefault(one.file, {}).setdefault(one.row, (one.passage, place))


def overlaps_of(
    train: Sequence[Rows],
    held_out: Sequence[Rows],
    policy: ContaminationPolicy,
    memo_dir: Path | str,
) -> Overlaps:
    """Return the training rows that repeat held-out rows or rows of benchmarks.

    The same rows are searched once; those with pictures each time, since pictures lie outside the
    files whose content is known. Args: held_out: held-out rows and benchmarks.
    Raises: DataError when a benchmark has no question in any row.
    """
    if not train or not held_out:
        return Overlaps(policy)
    memo = Path(memo_dir).expanduser() / f"contamination-{_key(train, held_out)[:16]}.jsonl"
    if not memo.is_file():
        from rl_core.data.overlap.search import Search

        search = Search(train, held_out)
        target = memo.with_name(f"latest-{memo.name}") if search.has_pictures else memo
        with atomic_writer(target) as lines:
            lines.writelines(one.model_dump_json() + "\n" for one in search.all_overlaps())
        memo = target
    overlaps = Overlaps(policy, memo)
    for one in overlaps.each():
        overlaps.add(one)
    return overlaps


def first_overlaps(train: Sequence[Rows], held_out: Sequence[Rows], num_rows: int) -> list[Overlap]:
    """Return what the first rows of each training file repeat."""

    def first(rows: Rows) -> Rows:
        return replace(rows, read=lambda: islice(rows.read(), num_rows))

    if not train or not held_out:
        return []
    from rl_core.data.overlap.search import Search

    return list(Search([first(rows) for rows in train], held_out).all_overlaps())


def refuse_contaminated(report: ContaminationReport | None) -> None:
    """Refuse what the policy `fail` does not allow. Raises: DataError naming the rows."""
    if report is not None and report.policy == ContaminationPolicy.FAIL and report.num_rows:
        shown = [one for pair in report.pairs for one in pair.first]
        raise refusal(report.num_rows, shown, f"; all are in {report.path}")


def refusal(num_rows: int, shown: Iterable[Overlap], all_are: str = "") -> DataError:
    """Return the error of the policy `fail`."""
    listed = "\n".join(f"  {one}" for one in islice(shown, NUM_LISTED))
    return DataError(
        f"{num_rows} training rows repeat rows that are held out or of a benchmark "
        "(validation.contamination: fail); take them out, or leave them out with "
        f"validation.contamination: drop{all_are}\n{listed}"
    )


def _key(train: Sequence[Rows], held_out: Sequence[Rows]) -> str:
    return run_hash({"version": VERSION, "train": _named(train), "held out": _named(held_out)})


def _named(files: Sequence[Rows]) -> str:
    parts: list[Mapping[str, str]] = []
    for rows in files:
        parts.append(
            {"file": rows.file, "identity": rows.identity, "benchmark": str(rows.benchmark)}
        )
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()
