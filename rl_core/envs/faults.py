"""Errors that an environment or a scorer raises: where in whose code, and whether another try may
help."""

from __future__ import annotations

import re
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path

from rl_core.errors import BrokenCode, RewardError

OF_CODE = (
    *("ArithmeticError", "AssertionError", "AttributeError", "ImportError", "IndexError"),
    *("KeyError", "ModuleNotFoundError", "NameError", "NotImplementedError", "OverflowError"),
    *("RecursionError", "SyntaxError", "TypeError", "UnboundLocalError", "ValueError"),
    "ZeroDivisionError",
)
"""Types of errors that the same code raises again on the same row."""
_FIRST = re.compile(r"(?:^|[: ])([A-Z]\w+(?:Error|Exception|Expired)): ")
_PLACE = re.compile(r" \(\S+\.py:\d+\)$")
_ROOT = Path(__file__).resolve().parents[2]
_NOT_THE_USERS = (
    *(str(_ROOT / name) for name in ("rl_core", "flows", "tasks", "schemas", "skyrl_gym")),
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
    "<",
)


def described(error: BaseException) -> str:
    """Return type and message of an error, and the line of the user's code that it came from, such
    as `ZeroDivisionError: division by zero (my_env.py:12)`."""
    said = f"{type(error).__name__}: {error}"
    lines = [
        f"{Path(frame.filename).name}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_NOT_THE_USERS)
    ]
    return f"{said} ({lines[-1]})" if lines else said


def no_verdicts(message: str, reasons: Sequence[str]) -> RewardError:
    """Return the error of rows without a verdict.

    Args: message: its text. reasons: one a failed row, each from `described`. Returns: BrokenCode,
    which is not tried again, if the user's code raised an error of its own in all of them.
    """
    is_of_code = bool(reasons) and all(map(_is_of_code, reasons))
    return (BrokenCode if is_of_code else RewardError)(message)


def _is_of_code(reason: str) -> bool:
    found = _FIRST.search(reason)
    return found is not None and found[1] in OF_CODE and _PLACE.search(reason) is not None
