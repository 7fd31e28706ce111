"""Write the pairs of this project; replace it by whatever reads yours: python make_rows.py"""

import json
import random
from pathlib import Path

COMPLAINTS = [
    "The {thing} that I bought last {day} is broken.",
    "My {thing} has not arrived, and it is {day} already.",
    "You sent me the wrong {thing} on {day}.",
    "Since {day} the {thing} makes a strange noise.",
]
HELP = [
    "I am sorry about that. We will send you a new {thing} today.",
    "That should not happen. Shall we replace the {thing} or pay you back?",
    "Thank you for telling us. A new {thing} is on its way to you.",
]
NO_HELP = [
    "That is not our fault. The {thing} was fine when it left us.",
    "You should have read the terms. We do not take the {thing} back.",
    "Many people have that with a {thing}. There is nothing to be done.",
]
THINGS = ["lamp", "kettle", "chair", "radio", "jacket", "puzzle", "phone", "blanket"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday"]
NUM_TRAIN = 112


def all_pairs() -> list[dict[str, str]]:
    """Return a pair for each complaint, in a fixed random order."""
    draw = random.Random(0)
    pairs = []
    for complaint in COMPLAINTS:
        for thing in THINGS:
            for day in DAYS:
                pairs.append(
                    {
                        "question": complaint.format(thing=thing, day=day),
                        "chosen": draw.choice(HELP).format(thing=thing),
                        "rejected": draw.choice(NO_HELP).format(thing=thing),
                    }
                )
    draw.shuffle(pairs)
    return pairs


def main() -> None:
    """Write the two files; no complaint is in both."""
    pairs = all_pairs()
    folder = Path(__file__).parent / "rows"
    for name, part in (("train", pairs[:NUM_TRAIN]), ("held-out", pairs[NUM_TRAIN:])):
        lines = [json.dumps(pair) for pair in part]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
