"""Program of the process behind `MathVerifier`: math-verify on two answers."""

import logging
import resource
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify

MEMORY_BYTES = 4 * 2**30

logging.disable(logging.CRITICAL)
if __name__ == "worker":
    resource.setrlimit(
        resource.RLIMIT_AS, (MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1])
    )


def answer(sides: tuple[str, str]) -> bool:
    """Return True if two LaTeX expressions, each read as a whole, are equal. Expressions that
    cannot be compared are not."""
    try:
        truth, given = map(_parse, sides)
        return bool(truth) and bool(given) and bool(verify(truth, given, timeout_seconds=None))
    except (Exception, RecursionError, MemoryError):
        return False


def _parse(text: str) -> list[Any]:
    return parse(
        f"\\boxed{{{text}}}",
        extraction_config=[LatexExtractionConfig(boxed_match_priority=0)],
        fallback_mode="no_fallback",
        extraction_mode="first_match",
        parsing_timeout=None,  # type: ignore[arg-type]  # the process has its own deadline
    )
