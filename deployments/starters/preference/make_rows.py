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
ASKS = [
    "Please send us a photo of the {thing}.",
    "Could you send us a photo of the {thing} and your order number?",
    "We need a photo of the {thing} first. Please reply to this message.",
]
PROMISES = [
    "I am sorry about that. We will send you a new {thing} today.",
    "That should not happen. You get your money back at once.",
    "Thank you for telling us. A new {thing} is on its way to you.",
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
                        "chosen": draw.choice(ASKS).format(thing=thing),
                        "rejected": draw.choice(PROMISES).format(thing=thing),
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
