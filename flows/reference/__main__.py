"""Entry point of `python -m flows.reference [FOLDER]`, which writes the pages."""

import sys
from pathlib import Path

from flows.reference.pages import FOLDER, pages

folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
for name, text in pages().items():
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")
