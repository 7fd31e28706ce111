"""Validation of files as a preparation does it: look at every row, then judge."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from rl_core.data.check.files import apply_policy, check_files
from rl_core.data.check.parts import CheckSettings
from schemas.receipts import ValidationReport
from schemas.rows.contract import SchemaName


def validate_files(
    paths: Sequence[Path | str],
    *,
    allowed_env_classes: Mapping[str, frozenset[str]],
    default_env_class: str | None = None,
    rejects_dir: Path | str,
    memo_dir: Path | str,
    policy: Literal["fail", "drop"] = "fail",
    max_bad_fraction: float = 0.0,
    prompt_key: str = "prompt",
    held_out: Sequence[Path | str] = (),
    schema: SchemaName | None = None,
) -> ValidationReport:
    """`check_files`, then `apply_policy`."""
    settings = CheckSettings(allowed_env_classes, default_env_class, prompt_key, schema)
    report = check_files(
        paths, settings, held_out=held_out, rejects_dir=rejects_dir, memo_dir=memo_dir
    )
    apply_policy(report, policy, max_bad_fraction)
    return report
