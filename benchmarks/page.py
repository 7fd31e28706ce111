"""docs/benchmarks.md: results of benchmarks that take minutes, in one section each, which the
benchmark rewrites."""

from __future__ import annotations

import os
import platform
import re
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

JsonObject: TypeAlias = dict[str, Any]
"""Settings for a measured process, or the figures it answers; both ends agree on the keys."""
PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
HEAD = """# Benchmarks

Each section was written by the command it names, on the machine it names. The other figures are in
`benchmarks/README.md`.
"""


def write_section(title: str, body: str) -> None:
    """Replace the section with this title, or append it."""
    text = PAGE.read_text(encoding="utf-8") if PAGE.is_file() else HEAD
    section = f"## {title}\n\n{body.strip()}\n"
    found = re.search(rf"^## {re.escape(title)}\n.*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if found:
        rest = text[found.end() :]
        text = text[: found.start()] + section + ("\n" + rest if rest else "")
    else:
        text = f"{text.rstrip()}\n\n{section}"
    PAGE.write_text(text, encoding="utf-8")


def table(heads: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def machine() -> str:
    """Describe processor, cores, load, versions and date in one line."""
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.is_file() else ""
    name = re.search(r"model name\s*:\s*(.+)", text)
    flags = re.search(r"flags\s*:\s*(.+)", text)
    known = []
    for flag in ("avx512f", "avx512_bf16", "amx_bf16"):
        if flags and flag in flags[1].split():
            known.append(flag)
    load = os.getloadavg()[0]
    return (
        f"{name[1] if name else platform.processor()} "
        f"({', '.join(known) or platform.machine()}), {len(os.sched_getaffinity(0))} cores, load "
        f"{load:.1f} at the end, niceness {os.nice(0)}; Python {platform.python_version()}, "
        f"torch {version('torch')}, transformers {version('transformers')}; "
        f"{datetime.now(UTC):%Y-%m-%d}"
    )
