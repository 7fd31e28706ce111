"""Write the rows of this project; replace it by whatever reads yours: python make_rows.py"""

import json
import random
from pathlib import Path

MESSAGES = [
    "My order {order} came without the {thing}.",
    "The {thing} of order {order} is broken, and I paid {price} euros for it.",
    "I bought a {thing} for {price} euros. Where is my order {order}?",
    "Please send order {order} to my new address. I need the {thing} by the {day}th.",
    "Order {order} arrived {day} days late, and the {thing} is the wrong one.",
    "Hello, I would like to return the {thing}. The number of the order is {order}.",
]
THINGS = ["lamp", "kettle", "chair", "radio", "jacket", "puzzle", "phone", "blanket"]
QUESTION = "What is the order number? Reply with the number alone."
NUM_TRAIN, NUM_HELD_OUT = 96, 48


def make_row(draw: random.Random, number: int) -> dict[str, object]:
    """Return one row: the prompt, the environment that grades the reply, and the right answer."""
    order = str(draw.randrange(10_000, 100_000))
    message = draw.choice(MESSAGES).format(
        order=order,
        thing=draw.choice(THINGS),
        price=draw.randrange(15, 90),
        day=draw.randrange(4, 20),
    )
    return {
        "id": f"order-{number}",
        "prompt": [{"role": "user", "content": f"{message}\n{QUESTION}"}],
        "env_class": "orders",
        "reward_spec": {"method": "rule", "ground_truth": order},
    }


def main() -> None:
    """Write the two files; no row is in both."""
    draw = random.Random(0)
    rows = [make_row(draw, number) for number in range(NUM_TRAIN + NUM_HELD_OUT)]
    folder = Path(__file__).parent / "rows"
    for name, part in (("train", rows[:NUM_TRAIN]), ("held-out", rows[NUM_TRAIN:])):
        lines = [json.dumps(row) for row in part]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
