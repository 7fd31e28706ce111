"""Validation of prompt files: every error in one pass, memory bounded by the batch, unchanged files not read again."""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from rl_core.data.atomic import atomic_write_json, atomic_write_text, atomic_writer
from rl_core.data.fingerprint import explain_change, file_parts, fingerprint, run_hash
from rl_core.errors import DataError
from schemas.prompt_rows import SCHEMA_VERSION, AllowedEnvClasses
from schemas.receipts import Receipt, Rejection, ValidationReport

Policy = Literal["fail", "drop"]
NUM_EXAMPLES = 10


class _Remembered(Receipt):
    """A report and what it was made from."""

    parts: dict[str, str]
    report: ValidationReport


def describe_env_classes(allowed: AllowedEnvClasses) -> str:
    """The allowed environments and the ground truths they accept, as one hash part."""
    return ", ".join(f"{name}({'|'.join(sorted(kinds))})" for name, kinds in sorted(allowed.items()))


def validate_files(
    paths: Sequence[Path | str],
    *,
    allowed_env_classes: AllowedEnvClasses,
    default_env_class: str | None = None,
    rejects_dir: Path | str,
    memo_dir: Path | str,
    policy: Policy = "fail",
    max_bad_fraction: float = 0.0,
    prompt_key: str = "prompt",
) -> ValidationReport:
    """Check all rows of all files; `rejects.jsonl` in `rejects_dir` lists every problem.

    Args: policy: `fail` refuses any bad row, `drop` accepts up to `max_bad_fraction` of all rows.
    Returns: the report, from the cache when the same files were validated before in the same way.
    Raises: DataError when the policy refuses the files, no row is good, or a file cannot be read.
    """
    if not paths:
        raise DataError("no data files to validate; name at least one")
    sources = [fingerprint(path, memo_dir) for path in paths]
    parts = file_parts({"data": sources}) | {
        "schema version": SCHEMA_VERSION,
        "environments": describe_env_classes(allowed_env_classes),
        "default env_class": default_env_class or "",
        "prompt key": prompt_key,
    }
    rejects_path = Path(rejects_dir).expanduser() / "rejects.jsonl"
    memo = Path(memo_dir).expanduser() / f"validation-{run_hash(parts)[:16]}.json"
    latest = memo.with_name(f"validation-latest-{_paths_key(paths)}.json")
    report = _from_memo(memo, parts, rejects_path)
    if report is None:
        num_rows, rejections = 0, _Rejections()
        with atomic_writer(rejects_path) as file:
            for path in paths:
                num_rows += _check_file(
                    path, rejections, file.write, allowed_env_classes, default_env_class, prompt_key
                )
        report = ValidationReport(
            files=sources,
            num_rows=num_rows,
            num_accepted=num_rows - rejections.num_rows,
            rejected_by_reason=dict(rejections.by_reason),
            examples=rejections.examples,
            rejects_path=str(rejects_path),
            explanation=_explain_miss(latest, parts),
        )
        atomic_write_json(memo, _Remembered(parts=parts, report=report).model_dump())
    atomic_write_text(latest, _Remembered(parts=parts, report=report).model_dump_json())
    _apply_policy(report, policy, max_bad_fraction)
    return report


class _Rejections:
    """Running totals over the batches of all files."""

    def __init__(self) -> None:
        self.num_rows = 0
        self.by_reason: Counter[str] = Counter()
        self.examples: list[Rejection] = []

    def add(self, rejections: list[Rejection], num_rows: int) -> None:
        self.num_rows += num_rows
        self.by_reason.update(rejection.reason for rejection in rejections)
        self.examples += rejections[: NUM_EXAMPLES - len(self.examples)]


def _check_file(
    path: Path | str,
    rejections: _Rejections,
    write: Callable[[str], object],
    allowed_env_classes: AllowedEnvClasses,
    default_env_class: str | None,
    prompt_key: str,
) -> int:
    from rl_core.data.batches import checked_batches

    num_rows = 0
    for batch in checked_batches(
        path, allowed_env_classes=allowed_env_classes, default_env_class=default_env_class, prompt_key=prompt_key
    ):
        num_rows += batch.num_rows
        rejections.add(batch.rejections, len(batch.rejected_numbers))
        for rejection in batch.rejections:
            write(rejection.model_dump_json() + "\n")
    return num_rows


def _apply_policy(report: ValidationReport, policy: Policy, max_bad_fraction: float) -> None:
    listed = "\n".join(f"  {example}" for example in report.examples)
    found = f"{report.num_rejected} of {report.num_rows} rows are refused"
    if not report.num_accepted:
        raise DataError(f"no row can be used: {found}; all problems are in {report.rejects_path}\n{listed}")
    if policy == "fail" and report.num_rejected:
        advice = f"mend them, or drop them with on_invalid: drop; all problems are in {report.rejects_path}"
        raise DataError(f"{found}; {advice}\n{listed}")
    if policy == "drop" and report.num_rejected > max_bad_fraction * report.num_rows:
        limit = f"more than max_bad_fraction {max_bad_fraction:g} allows; all problems are in {report.rejects_path}"
        raise DataError(f"{found}, {limit}\n{listed}")


def _from_memo(memo: Path, parts: dict[str, str], rejects_path: Path) -> ValidationReport | None:
    remembered = _read_memo(memo)
    if remembered is None or remembered.parts != parts:
        return None
    report = remembered.report
    if report.num_rejected and (report.rejects_path != str(rejects_path) or not rejects_path.is_file()):
        return None
    explanation = "cached: the same files were validated before under the same schema and environments"
    return report.model_copy(update={"cached": True, "explanation": explanation})


def _explain_miss(latest: Path, parts: dict[str, str]) -> str:
    previous = _read_memo(latest)
    if previous is None:
        return "validated: first time for these files"
    if previous.parts == parts:
        return "validated: the list of refused rows had to be written again"
    return f"validated: {explain_change(previous.parts, parts)}"


def _read_memo(path: Path) -> _Remembered | None:
    try:
        return _Remembered.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValidationError):
        return None


def _paths_key(paths: Sequence[Path | str]) -> str:
    joined = "\n".join(str(Path(path).expanduser().resolve()) for path in paths)
    return hashlib.sha256(joined.encode()).hexdigest()[:16]
