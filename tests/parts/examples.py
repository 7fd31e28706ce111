"""The examples of docs/extending.md as files, as a user would copy them."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "extending.md"
BLOCK = re.compile(r"^```python\n# (\w+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def examples() -> dict[str, str]:
    """Text of each example that names its file."""
    return {match[1]: match[2] for match in BLOCK.finditer(page())}


def write_examples(folder: Path, *names: str) -> None:
    """Write examples into a folder of the user's."""
    for name in names:
        (folder / name).write_text(examples()[name], encoding="utf-8")
