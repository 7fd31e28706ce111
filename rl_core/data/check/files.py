"""Validation of row files: every error in one pass, memory bounded by the batch, unchanged files
not read again."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from pydantic import ValidationError

from rl_core.data.check.groups import Groups
from rl_core.data.check.parts import Checked, CheckSettings, Part, check_part, parts_of
from rl_core.data.check.trials import REFUSED_BY
from rl_core.data.overlap.found import (
    REPORTED,
    Contamination,
    Overlaps,
    overlaps_of,
    refuse_contaminated,
)
from rl_core.data.overlap.found import VERSION as OVERLAP_VERSION
from rl_core.data.overlap.sides import Sides, sides_of
from rl_core.data.prepare.fingerprint import explain_change, file_parts, fingerprint, run_hash
from rl_core.data.store.atomic import atomic_write_json, atomic_write_text, atomic_writer
from rl_core.data.store.id_places import IdPlaces
from rl_core.envs.trials.settings import VERSION as TRIALS_VERSION
from rl_core.envs.trials.settings import TrialSettings, Verdict
from rl_core.errors import DataError
from schemas.receipts import Receipt, Rejection, SourceFile, ValidationReport
from schemas.rows.ground_truth import AllowedEnvClasses
from schemas.rows.media_checks import MediaLimits
from schemas.rows.prompt_rows import SCHEMA_VERSION

CHECKS_VERSION = "4"
"""Version of these checks, raised whenever the same rows would get another report."""
Policy = Literal["fail", "drop"]
Runner: TypeAlias = Callable[[Sequence[Part], CheckSettings], Iterator[tuple[Part, Checked]]]
"""Function that checks parts and yields the findings, in the order of the parts and of their
rows."""

NUM_EXAMPLES = 10
EXAMPLES_PER_REASON = 2


class _Remembered(Receipt):
    """A cached report and the inputs it was made from."""

    parts: dict[str, str]
    report: ValidationReport


def describe_env_classes(allowed: AllowedEnvClasses) -> str:
    """Describe the allowed environments and the ground truths they accept, as one part of a
    hash."""
    return ", ".join(
        f"{name}({'|'.join(sorted(kinds))})" for name, kinds in sorted(allowed.items())
    )


def check_files(
    paths: Sequence[Path | str],
    settings: CheckSettings,
    *,
    held_out: Sequence[Path | str] = (),
    contamination: Contamination = REPORTED,
    sides: Sides | None = None,
    rejects_dir: Path | str,
    memo_dir: Path | str,
    runner: Runner | None = None,
) -> ValidationReport:
    """Check all rows of all files; `rejects.jsonl` in `rejects_dir` lists every problem,
    `warnings.jsonl` every doubtful row, `contamination.jsonl` every training row that repeats a
    held-out row or one of a benchmark.

    Args: paths: training files, or any others. held_out: evaluation files, checked as well; a row
    of `paths` with the question of a held-out row is refused. contamination: benchmarks, and what
    happens to rows that repeat others. sides: the rows that are compared, where they are not those
    of the files and none is refused for it. runner: executes the checks; unset means this machine,
    on all cores.
    Returns: the report, from the cache if the same files were validated before in the same way.
    Raises: DataError when a file cannot be read or is empty.
    """
    files = [str(path) for path in (*paths, *held_out)]
    if not files:
        raise DataError("no data files to validate; name at least one")
    sources = [fingerprint(file, memo_dir) for file in files]
    compared = sides or sides_of(
        paths,
        held_out,
        contamination.benchmarks,
        memo_dir,
        prompt_key=settings.prompt_key,
        schema=settings.schema,
        media_root=settings.media_root,
    )
    benchmarks = [fingerprint(file, memo_dir) for file in contamination.benchmarks]
    parts = _hash_parts(sources, len(paths), settings, benchmarks) | {
        "contamination": f"{contamination.policy}, version {OVERLAP_VERSION}",
        "compared rows": _identity(sides) if sides else "of the files",
    }
    rejects_path = Path(rejects_dir).expanduser() / "rejects.jsonl"
    memo = Path(memo_dir).expanduser() / f"validation-{run_hash(parts)[:16]}.json"
    latest = memo.with_name(f"validation-latest-{_paths_key(files)}.json")
    report = _from_memo(memo, parts, rejects_path, settings)
    if report is not None and not _names_files(report, compared):
        report = None
    if report is None:
        overlaps = overlaps_of(*compared, contamination.policy, memo_dir)
        report = _check(
            files,
            len(paths),
            settings,
            runner or run_here,
            rejects_path,
            overlaps,
            refuses=sides is None,
        ).model_copy(
            update={
                "files": sources,
                "num_training_files": len(paths),
                "explanation": _explain_miss(latest, parts),
            }
        )
        atomic_write_json(memo, _Remembered(parts=parts, report=report).model_dump())
    atomic_write_text(latest, _Remembered(parts=parts, report=report).model_dump_json())
    return report


def apply_policy(report: ValidationReport, policy: Policy, max_bad_fraction: float) -> None:
    """Decide if these rows may be used.

    Args: policy: `fail` refuses any bad row, `drop` accepts up to `max_bad_fraction` of all rows.
    Raises: DataError when the rows may not be used, or no row is good, or training rows repeat
    others that they must not.
    """
    refuse_contaminated(report.contamination)
    examples = report.examples[:NUM_EXAMPLES]
    listed = "\n".join(f"  {example}" for example in examples)
    found = f"{report.num_rejected} of {report.num_rows} rows are refused"
    if not report.num_accepted:
        raise DataError(
            f"no row can be used: {found}; all problems are in {report.rejects_path}\n{listed}"
        )
    if policy == "fail" and report.num_rejected:
        advice = (
            "fix them, or drop them with on_invalid: drop; all problems are in "
            f"{report.rejects_path}"
        )
        raise DataError(f"{found}; {advice}\n{listed}")
    if policy == "drop" and report.num_rejected > max_bad_fraction * report.num_rows:
        limit = (
            f"more than max_bad_fraction {max_bad_fraction:g} allows; all problems are in "
            f"{report.rejects_path}"
        )
        raise DataError(f"{found}, {limit}\n{listed}")


def run_here(parts: Sequence[Part], settings: CheckSettings) -> Iterator[tuple[Part, Checked]]:
    """Check parts one after the other, each on all cores of this machine."""
    with settings.row_trials() as trials:
        for part in parts:
            for checked in check_part(part, settings, trials):
                yield part, checked


def _check(
    files: Sequence[str],
    num_training: int,
    settings: CheckSettings,
    runner: Runner,
    rejects_path: Path,
    overlaps: Overlaps,
    refuses: bool,
) -> ValidationReport:
    totals = _Totals()
    schemas = {}
    warnings_path = _warnings_path(rejects_path)
    with atomic_writer(rejects_path) as rejects, atomic_writer(warnings_path) as warnings:
        asked = overlaps.all_rejections() if refuses else []
        for chosen, known in ((files[:num_training], asked), (files[num_training:], [])):
            parts = [part for file in chosen for part in parts_of(file, settings, len(files))]
            schemas |= {part.file: part.schema.value for part in parts}
            found = _without_repeats(runner(parts, settings), chosen)
            for part, checked in _with_known(found, known):
                totals.add(part, checked)
                rejects.writelines(one.model_dump_json() + "\n" for one in checked.rejections)
                warnings.writelines(one.model_dump_json() + "\n" for one in checked.warnings)
            for file in chosen:
                if not totals.rows_of[file]:
                    raise DataError(f"{file}: the file is empty; expected at least one row")
    return ValidationReport(
        files=[],
        schemas=schemas,
        num_rows=totals.rows_of.total(),
        num_accepted=totals.rows_of.total() - totals.num_rejected,
        rejected_by_reason=dict(totals.by_reason.most_common()),
        examples=totals.examples,
        problems=totals.problems.in_order(),
        warnings=totals.warnings.in_order(),
        untried=totals.untried,
        names_files=totals.names_files,
        rejects_path=str(rejects_path),
        warnings_path=str(warnings_path),
        contamination=overlaps.report(_contamination_path(rejects_path)) if overlaps.path else None,
        explanation="",
    )


def _without_repeats(
    found: Iterator[tuple[Part, Checked]], files: Sequence[str]
) -> Iterator[tuple[Part, Checked]]:
    """Yield the findings of all parts of a split, with the rows that repeat the id of another."""
    ids = IdPlaces(files)
    for part, checked in found:
        problems = []
        for number, prompt_id in checked.ids:
            if problem := ids.problem(prompt_id, f"{part.file}:{number}"):
                problems.append(problem.rejection(part.file, number))
        checked.rejections += problems
        checked.rejections.sort(key=lambda rejection: rejection.row)
        checked.num_rejected += len(problems)
        yield part, checked


def _with_known(
    found: Iterator[tuple[Part, Checked]], known: Sequence[Rejection]
) -> Iterator[tuple[str, Checked]]:
    """Yield the findings of parts by file, then problems that are known already."""
    places = {(one.file, one.row) for one in known}
    bad: set[tuple[str, int]] = set()
    for part, checked in found:
        bad |= {(one.file, one.row) for one in checked.rejections} & places
        yield part.file, checked
    for one in known:
        yield one.file, Checked(0, int((one.file, one.row) not in bad), [one])


class _Totals:
    """Running totals over the batches of all files."""

    def __init__(self) -> None:
        self.rows_of: Counter[str] = Counter()
        self.num_rejected = 0
        self.by_reason: Counter[str] = Counter()
        self.examples: list[Rejection] = []
        self.problems, self.warnings = Groups(), Groups()
        self.untried: dict[str, str] = {}
        self.names_files = False
        self._shown: Counter[str] = Counter()

    def add(self, file: str, checked: Checked) -> None:
        self.rows_of[file] += checked.num_rows
        self.num_rejected += checked.num_rejected
        self.problems.add(checked.rejections)
        self.warnings.add(checked.warnings)
        self.untried |= checked.untried
        self.names_files |= checked.names_files
        for rejection in checked.rejections:
            self.by_reason[rejection.reason] += 1
            # The first ones overall, and the first of each reason wherever they are.
            if (
                len(self.examples) < NUM_EXAMPLES
                or self._shown[rejection.reason] < EXAMPLES_PER_REASON
            ):
                self.examples.append(rejection)
                self._shown[rejection.reason] += 1


def _hash_parts(
    sources: list[SourceFile],
    num_training: int,
    settings: CheckSettings,
    benchmarks: list[SourceFile],
) -> dict[str, str]:
    files = {"data": sources[:num_training], "held-out": sources[num_training:]}
    return file_parts(files | ({"benchmarks": benchmarks} if benchmarks else {})) | {
        "schema version": SCHEMA_VERSION,
        "checks version": CHECKS_VERSION,
        "trials": _describe_trials(settings.trials),
        "schema": settings.schema.value if settings.schema else "recognised",
        "environments": describe_env_classes(settings.allowed_env_classes),
        "default env_class": settings.default_env_class or "",
        "prompt key": settings.prompt_key,
        "media limits": _describe_limits(settings.limits, settings.media_root),
        "images": "texts alone" if settings.texts_alone else "opened",
    }


def _describe_trials(trials: TrialSettings | None) -> str:
    if trials is None:
        return "none"
    return f"version {TRIALS_VERSION} {trials.describe()}"


def _warnings_path(rejects_path: Path) -> Path:
    return rejects_path.with_name("warnings.jsonl")


def _contamination_path(rejects_path: Path) -> Path:
    return rejects_path.with_name("contamination.jsonl")


def _identity(sides: Sides) -> str:
    identities = {}
    for number, side in enumerate(sides):
        for rows in side:
            identities[f"{number} {rows.file}"] = rows.identity
    return run_hash(identities)


def _names_files(report: ValidationReport, compared: Sides) -> bool:
    """Return True unless the files had other names when the report was made."""
    pairs = report.contamination.pairs if report.contamination else []
    train_side, measured_side = compared
    train = {rows.file for rows in train_side}
    measured = {rows.file for rows in measured_side}
    return all(pair.file in train and pair.other_file in measured for pair in pairs)


def _describe_limits(limits: MediaLimits, root: Path | None) -> str:
    remote = "remote media checked" if limits.check_remote else "remote media unchecked"
    return (
        f"{limits.max_bytes} bytes, {limits.max_pixels} pixels, {remote}, root "
        f"{root or 'of the file'}"
    )


def _from_memo(
    memo: Path, parts: dict[str, str], rejects_path: Path, settings: CheckSettings
) -> ValidationReport | None:
    remembered = _read_memo(memo)
    if remembered is None or remembered.parts != parts:
        return None
    report = remembered.report
    # What an environment lacked (a database, a sandbox) may be there now.
    not_built = any(what.endswith(Verdict.NOT_BUILT) for what in report.untried)
    if not_built or any(group.reason.startswith(REFUSED_BY) for group in report.problems):
        return None
    # Pictures lie outside the files whose content is known, so they are looked at again.
    if report.names_files and not settings.texts_alone:
        return None
    lists = [(report.num_rejected, report.rejects_path, rejects_path)]
    lists += [(len(report.warnings), report.warnings_path, _warnings_path(rejects_path))]
    if (found := report.contamination) is not None:
        lists += [(len(found.pairs), found.path, _contamination_path(rejects_path))]
    if any(count and (str(path) != was or not path.is_file()) for count, was, path in lists):
        return None
    explanation = (
        "cached: the same files were validated before under the same schema and environments"
    )
    return report.model_copy(update={"cached": True, "explanation": explanation})


def _explain_miss(latest: Path, parts: dict[str, str]) -> str:
    previous = _read_memo(latest)
    if previous is None:
        return "validated: first time for these files"
    if previous.parts == parts:
        return "validated: the rows had to be looked at again"
    return f"validated: {explain_change(previous.parts, parts)}"


def _read_memo(path: Path) -> _Remembered | None:
    try:
        return _Remembered.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValidationError):
        return None


def _paths_key(paths: Sequence[Path | str]) -> str:
    joined = "\n".join(str(Path(path).expanduser().resolve()) for path in paths)
    return hashlib.sha256(joined.encode()).hexdigest()[:16]
