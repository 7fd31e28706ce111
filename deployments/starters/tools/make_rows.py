"""Write the questions of this project; replace it by whatever reads yours: python make_rows.py"""

import json
import random
from pathlib import Path

QUESTIONS = ["Calculate {a} * {b}.", "Work out {a} * {b}.", "Give me {a} * {b}."]
NUM_TRAIN, NUM_HELD_OUT = 128, 48


def make_rows(count: int) -> list[dict[str, object]]:
    """Return rows whose products differ."""
    draw, rows = random.Random(0), dict[tuple[int, int], dict[str, object]]()
    while len(rows) < count:
        a, b = draw.randrange(11, 100), draw.randrange(11, 100)
        question = draw.choice(QUESTIONS).format(a=a, b=b)
        rows[a, b] = {
            "id": f"product-{a}-{b}",
            "prompt": [{"role": "user", "content": question}],
            "env_class": "products",
            "reward_spec": {"method": "rule", "ground_truth": str(a * b)},
        }
    return list(rows.values())


def main() -> None:
    """Write the two files; no product is in both."""
    rows = make_rows(NUM_TRAIN + NUM_HELD_OUT)
    folder = Path(__file__).parent / "rows"
    folder.mkdir(exist_ok=True)
    for name, part in (("train", rows[:NUM_TRAIN]), ("held-out", rows[NUM_TRAIN:])):
        lines = [json.dumps(row) for row in part]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
