"""Entry point of `python -m flows.reference [FOLDER]`, which writes the pages."""

import sys
from pathlib import Path

from flows.reference.pages import FOLDER, pages

folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
folder.mkdir(parents=True, exist_ok=True)
for name, text in pages().items():
    (folder / name).write_text(text, encoding="utf-8")
