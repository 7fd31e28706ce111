"""`make check-models`: every family of language models on every path of the product, compared with
plain transformers.

    python -m benchmarks.check_models [--only TYPE,TYPE,...] [--jobs N] [--fresh] [--write] [--found
    FILE]

Each path of each family runs in its own process with a time limit, forked from one that has
imported what it needs, so a crash or a hang is one cell of the table. Results are JSON lines in
`build/check-models.jsonl`; they are reused unless `--only` or `--fresh` is given. `--write` puts
the table into docs/models.md. The command fails if a path silently gives something else than the
model, or breaks without saying what is wrong.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path

from benchmarks import model_families, model_paths, models_page
from benchmarks.forks import Failed, apart
from benchmarks.model_paths import COOL, Found, Numbers, Row
from rl_core.runs.run_folder import source_revision

FOUND = Path(__file__).parents[1] / "build" / "check-models.jsonl"
"""Default file of the results."""
ALIKE = 1e-4
"""Tolerance of log-probabilities and entropies, in standard deviations of the model's
log-probabilities (about 2 nats for most). The effect of rounding errors of the weights is added, up
to `ROUNDING`."""
ROUNDING = 5 * ALIKE
"""Largest effect of rounding errors that is added to the tolerance; a larger one means that a row
took another branch, such as another expert."""
LIMIT_S = 300.0
"""Time limit for all paths of a family, in seconds."""
MOVED = 10
"""Smallest ratio of a training step's effect to the tolerance; with less, the check of exports
could not fail."""
COLUMNS = ("own forward", "padded", "packed", "shared", "decode", "TP 2", "SP 2", "export", "sync")
EQUAL, FALLS_BACK, REFUSED, WRONG, FAILS = "equal", "falls back", "refused", "WRONG", "fails"
FAULTS = (WRONG, FAILS)
WORST_FIRST = (WRONG, FAILS, REFUSED, FALLS_BACK, EQUAL)


@dataclass(frozen=True)
class Cell:
    """Result of one path of one family."""

    verdict: str
    difference: float | None = None
    """Largest difference; None if the path gave no result."""
    why: str = ""

    def __str__(self) -> str:
        size = "" if self.difference is None else f"{self.difference:.0e}"
        return " ".join(
            part for part in (self.verdict, size, f"({self.why})" if self.why else "") if part
        )


@dataclass
class Family:
    """A row of the table."""

    model_type: str
    cells: dict[str, Cell] = field(default_factory=dict)
    not_built: str = ""
    """Reason why no tiny model of the family could be built."""
    refused: str = ""
    """Reason why the model cannot be loaded; every cell repeats it."""
    revision: str = ""
    """Revision of the code that was checked."""
    seconds: float = 0.0


def check(model_type: str) -> Family:
    """Check all paths of one family."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="check-models-") as folder:
        family = Check(model_type, Path(folder)).family()
    family.seconds = round(time.perf_counter() - start, 1)
    return family


class Check:
    """Checks of one family. Args: folder: an empty one."""

    def __init__(self, model_type: str, folder: Path) -> None:
        self.model_type, self.folder = model_type, folder
        self.model = str(folder / "model")
        self.rows = model_paths.rows()

    def family(self) -> Family:
        """Check all paths and return the row of the table."""
        built = apart(model_families.build, self.model_type, Path(self.model))
        if isinstance(built, Failed):
            return Family(self.model_type, not_built=f"no tiny config: {built}")
        # Once here, not once in every fork.
        model_families.model_class(self.model_type)
        truth = self._plain((self.rows, 1.0), (self.rows, COOL))
        if isinstance(truth, Failed):
            return Family(
                self.model_type, not_built=f"plain transformers fails on rows of text: {truth}"
            )
        self.truth: Found = truth[0]
        self.cool: Found = truth[1]
        self.alike = ALIKE * self.truth.spread + min(self._rounding(), ROUNDING * self.truth.spread)
        found = apart(model_paths.all_paths, self.model, str(self.folder), limit_s=LIMIT_S)
        if isinstance(found, Failed):
            cell = self._failed(found)
            is_refused = cell.verdict == REFUSED
            return Family(
                self.model_type,
                dict.fromkeys(COLUMNS, cell),
                refused=cell.why if is_refused else "",
            )
        cells = {"own forward": self._own(found["own forward"])}
        for name in COLUMNS[1:-2]:
            cells[name] = self._path(found[name])
        cells["export"], cells["sync"] = self._trained(found)
        return Family(self.model_type, cells)

    def _rounding(self) -> float:
        """Return the largest change of the model's own outputs when its weights have rounding
        errors."""
        found = apart(model_paths.plain_rounded, self.model, self.model_type, self.rows)
        if isinstance(found, Failed):
            return 0.0
        return _largest(
            [(found.log_probs, self.truth.log_probs), (found.entropies, self.truth.entropies)]
        )

    def _plain(self, *several: tuple[list[Row], float], folder: str = "") -> list[Found] | Failed:
        return apart(model_paths.plain, folder or self.model, self.model_type, *several)

    def _own(self, found: Found | Failed) -> Cell:
        if isinstance(found, Failed):
            return self._failed(found)
        assert found.cool is not None
        return self._verdict(
            found,
            (found.log_probs, self.truth.log_probs),
            (found.entropies, self.truth.entropies),
            (found.cool.log_probs, self.cool.log_probs),
            (found.cool.entropies, self.cool.entropies),
        )

    def _path(self, found: Found | Failed) -> Cell:
        """Compare the log-probabilities of measured rows, of sampled replies, or of both."""
        if isinstance(found, Failed):
            return self._failed(found)
        pairs = [(found.log_probs, self.truth.log_probs)] if found.log_probs else []
        if sampled := [one for one in ((found.replies, 1.0), (found.cool_replies, COOL)) if one[0]]:
            truth = self._plain(
                *(([row for row, _ in replies], temperature) for replies, temperature in sampled)
            )
            if isinstance(truth, Failed):
                return Cell(FAILS, why=f"plain transformers fails on sampled rows: {truth}")
            said = []
            for replies, _ in sampled:
                said.append([log_probs for _, log_probs in replies])
            pairs += [(ours, theirs.log_probs) for ours, theirs in zip(said, truth, strict=True)]
        return self._verdict(found, *pairs)

    def _trained(self, all_found: dict[str, Found | Failed]) -> tuple[Cell, Cell]:
        """Compare export and sync after a step; return the worst result of each over the kinds of
        training."""
        exports: dict[str, Cell] = {}
        syncs: dict[str, Cell] = {}
        for kind in model_paths.TRAINED:
            found = all_found[kind]
            if isinstance(found, Failed):
                exports[kind] = syncs[kind] = self._failed(found)
                continue
            exports[kind] = self._exported(found, str(self.folder / kind))
            for mode, said in found.synced.items():
                is_failed = isinstance(said, Failed)
                name = f"{kind}, sync {mode}"
                if is_failed:
                    syncs[name] = self._failed(said)
                else:
                    syncs[name] = self._verdict(found, (said, found.log_probs))
        return _worst(exports), _worst(syncs)

    def _exported(self, found: Found, out: str) -> Cell:
        if isinstance(found.exported, Failed):
            return self._failed(found.exported)
        moved = _largest([(found.log_probs, self.truth.log_probs)])
        if moved < MOVED * self.alike:
            return Cell(
                FAILS,
                why=(
                    f"the step moved the policy by {moved:.1g} only, which is too little to see "
                    "anything"
                ),
            )
        said = self._plain((self.rows, 1.0), folder=out)
        if isinstance(said, Failed):
            return self._failed(said)
        return self._verdict(found, (said[0].log_probs, found.log_probs))

    def _failed(self, found: Failed) -> Cell:
        return Cell(REFUSED if found.by_name else FAILS, why=str(found))

    def _verdict(self, found: Found, *pairs: tuple[Numbers, Numbers]) -> Cell:
        difference = _largest(list(pairs))
        if not difference <= self.alike:
            return Cell(
                WRONG, difference, f"although {found.falls_back}" if found.falls_back else ""
            )
        return Cell(FALLS_BACK if found.falls_back else EQUAL, difference, found.falls_back)


def _largest(pairs: list[tuple[Numbers, Numbers]]) -> float:
    """Return the largest difference; infinite if a number is NaN."""
    differences = []
    for ours_B, theirs_B in pairs:
        for ours_T, theirs_T in zip(ours_B, theirs_B, strict=True):
            for ours, theirs in zip(ours_T, theirs_T, strict=True):
                differences.append(abs(ours - theirs))
    return max(one if one == one else float("inf") for one in differences)


def _worst(cells: dict[str, Cell]) -> Cell:
    """Return the worst of several results, with its kind of training in the reason."""
    kind, cell = min(
        cells.items(),
        key=lambda one: (WORST_FIRST.index(one[1].verdict), -(one[1].difference or 0.0)),
    )
    if cell.verdict == EQUAL or len({(one.verdict, one.why) for one in cells.values()}) == 1:
        return cell
    return Cell(cell.verdict, cell.difference, f"{kind}: {cell.why}" if cell.why else kind)


def load(found: Path) -> dict[str, Family]:
    """Return earlier results, the latest of each family."""
    families: dict[str, Family] = {}
    for line in found.read_text().splitlines() if found.is_file() else []:
        values = json.loads(line)
        values["cells"] = {name: Cell(**cell) for name, cell in values["cells"].items()}
        families[values["model_type"]] = Family(**values)
    return families


def run(model_types: list[str], jobs: int) -> Iterator[Family]:
    """Check the families, `jobs` at a time, in new single-threaded processes, which are safe to
    fork."""
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), prepare) as pool:
        yield from pool.map(check, model_types)


def prepare() -> None:
    """Import what every fork needs, and silence warnings."""
    import warnings

    import torch
    from transformers.utils import logging

    from rl_core.algorithms import algorithms

    for name in (
        *(
            "peft",
            "peft.tuners.lora",
            "torch._dynamo",
            "torch.distributed.fsdp",
            "torch.distributed.tensor.parallel",
        ),
        *(
            "rl_core.models.decoding.decode",
            "rl_core.rollout.dedicated",
            "rl_core.models.decoding.next_states",
            "rl_core.train.fsdp",
        ),
        *(
            "rl_core.models.export.folder",
            "rl_core.kernels.packed_products",
            "rl_core.train.stacks.token_stack",
            "rl_core.train.weights.buckets",
        ),
    ):
        import_module(name)
    algorithms.resolve({"name": "grpo"}, "algorithm")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.set_verbosity_error()
    logging.disable_progress_bar()


def show(family: Family) -> str:
    """Describe a family in one line, and each cell that is not equal in another one."""
    if family.not_built:
        return f"{family.model_type}: not built ({family.not_built})"
    if family.refused:
        return f"{family.model_type}: {REFUSED} ({family.refused})"
    odd = [f"  {name}: {cell}" for name, cell in family.cells.items() if cell.verdict != EQUAL]
    head = (
        f"{family.model_type}: {len(family.cells) - len(odd)} of {len(family.cells)} equal, "
        f"{family.seconds} s"
    )
    return "\n".join([head, *odd])


def main() -> None:
    """Run the requested checks, print the results and write the page if asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", help="types of models, with commas between; they are looked at anew"
    )
    parser.add_argument("--jobs", type=int, default=2, help="families at a time")
    parser.add_argument("--fresh", action="store_true", help="forget what was found before")
    parser.add_argument("--write", action="store_true", help="write docs/models.md")
    parser.add_argument("--found", type=Path, default=FOUND, help="the file of what was found")
    args = parser.parse_args()
    if args.fresh:
        args.found.unlink(missing_ok=True)
    asked = args.only.split(",") if args.only else model_families.model_types()
    known = {} if args.only else load(args.found)
    args.found.parent.mkdir(exist_ok=True)
    revision = source_revision()
    with args.found.open("a") as file:
        for family in run([name for name in asked if name not in known], args.jobs):
            family.revision = revision
            print(json.dumps(asdict(family)), file=file, flush=True)
            print(show(family), flush=True)
    families = load(args.found)
    counts = Counter(cell.verdict for name in asked for cell in families[name].cells.values())
    not_built = sum(bool(families[name].not_built) for name in asked)
    found = ", ".join(f"{counts[verdict]} {verdict}" for verdict in reversed(WORST_FIRST))
    print(f"{len(asked)} families, {not_built} of them not built; cells: {found}")
    if args.write:
        every = model_families.model_types()
        models_page.write(
            [families[name] for name in every if name in families], COLUMNS, ALIKE, len(every)
        )
    sys.exit(any(counts[fault] for fault in FAULTS))


if __name__ == "__main__":
    main()
