"""Write the prompts of this project; replace it by whatever reads yours: python make_rows.py"""

import json
import random
from pathlib import Path

OPENINGS = ["a photo of", "a picture of", "a drawing of", "an image of"]
NOUNS = ["the digit", "the number", "the figure"]
ENDINGS = ["", ", handwritten", " written by hand", " in white ink", " on black paper"]
NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def make_rows() -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """Return training and held-out rows; each wording is in one of them."""
    wordings = [f"{a} {b} {{}}{c}" for a in OPENINGS for b in NOUNS for c in ENDINGS]
    random.Random(0).shuffle(wordings)
    parts: list[list[dict[str, object]]] = [[], []]
    for number, wording in enumerate(wordings):
        for digit, name in enumerate(NAMES):
            row = {"prompt": wording.format(name), "metadata": {"digit": digit}}
            parts[number % 5 == 0].append({"prompt_id": f"{number}-{digit}", **row})
    return parts[0], parts[1][:96]


def main() -> None:
    """Write the two files."""
    folder = Path(__file__).parent / "rows"
    folder.mkdir(exist_ok=True)
    for name, rows in zip(("train", "held-out"), make_rows(), strict=True):
        lines = [json.dumps(row) for row in rows]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
