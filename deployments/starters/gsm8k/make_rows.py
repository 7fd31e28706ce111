"""Write the problems of this project, in GSM8K's columns: python make_rows.py"""

import json
import random
from pathlib import Path

STORIES = [
    ("{name} has {a} {thing} and buys {b} more. How many {thing} does {name} have now?", "+"),
    ("There are {a} {thing} on the table. {name} adds {b}. How many {thing} are there?", "+"),
    ("{name} has {a} {thing} and gives {b} away. How many {thing} are left?", "-"),
    ("{name} had {a} {thing} and lost {b} of them. How many {thing} does {name} still have?", "-"),
]
NAMES = ["Ann", "Ben", "Carla", "David", "Eva", "Farid"]
THINGS = ["apples", "books", "coins", "pens", "shells"]
NUM_TRAIN, NUM_HELD_OUT = 128, 64


def make_problem(draw: random.Random) -> dict[str, str]:
    """Return one problem with its worked answer."""
    story, sign = draw.choice(STORIES)
    a, b = draw.randrange(5, 10), draw.randrange(1, 5)
    question = story.format(name=draw.choice(NAMES), thing=draw.choice(THINGS), a=a, b=b)
    result = a + b if sign == "+" else a - b
    return {"question": question, "answer": f"{a} {sign} {b} = {result}\n#### {result}"}


def main() -> None:
    """Write the two files; no question is in both."""
    draw = random.Random(0)
    problems: dict[str, dict[str, str]] = {}
    while len(problems) < NUM_TRAIN + NUM_HELD_OUT:
        problem = make_problem(draw)
        problems[problem["question"]] = problem
    rows = list(problems.values())
    folder = Path(__file__).parent / "rows"
    for name, part in (("train", rows[:NUM_TRAIN]), ("held-out", rows[NUM_TRAIN:])):
        lines = [json.dumps(row) for row in part]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
