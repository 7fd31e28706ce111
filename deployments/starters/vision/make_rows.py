"""Draw the pictures of this project; replace it by whatever reads yours: python make_rows.py"""

import json
import random
from pathlib import Path

from rl_core.builtin.data.pictures import draw

NUM_TRAIN, NUM_HELD_OUT = 384, 96


def make_row(rng: random.Random, number: int, folder: Path) -> dict[str, object]:
    """Draw a picture into `folder/pictures`, and return the row with one question about it."""
    picture = draw(rng)
    question = rng.choice(picture.questions)
    name = f"pictures/{number}.png"
    (folder / name).write_bytes(picture.png)
    return {
        "id": f"picture-{number}",
        "prompt": [{"role": "user", "content": f"<image>\n{question.text}"}],
        "images": [name],
        "env_class": "pictures",
        "reward_spec": {"method": "rule", "ground_truth": question.answer},
    }


def main() -> None:
    """Write the two files and the pictures that they name; no picture is in both."""
    rng, folder = random.Random(0), Path(__file__).parent / "rows"
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    rows = [make_row(rng, number, folder) for number in range(NUM_TRAIN + NUM_HELD_OUT)]
    for name, part in (("train", rows[:NUM_TRAIN]), ("held-out", rows[NUM_TRAIN:])):
        lines = [json.dumps(row) for row in part]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
