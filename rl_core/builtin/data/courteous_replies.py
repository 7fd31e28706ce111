"""Generated pairs of a shop's replies to its customers: both say the same, one of them courteously.

The rejected reply is curt or leaves the courtesy out, and is filled up with a second fact, so that
the two cannot be told by their lengths: which one is longer is drawn for each pair.
"""

from __future__ import annotations

import random
from itertools import product

from rl_core.errors import DataError

COLOURS = ("red", "green", "blue", "yellow", "white", "black", "brown", "purple", "grey", "pink")
THINGS = [
    "hat",
    "lamp",
    "coat",
    "cup",
    "chair",
    "bag",
    "book",
    "shoe",
    "plate",
    "clock",
    "scarf",
    "table",
    "kettle",
    "umbrella",
]
QUESTIONS = (
    "Where is my {thing}?",
    "When will my {thing} arrive?",
    "Can I return the {thing}?",
    "Do you still have the {thing}?",
    "How much is the {thing}?",
    "Why is my {thing} so late?",
    "The {thing} is broken. What now?",
    "Is the {thing} sold in another size?",
)
FACTS = (
    "The {thing} left our store on {day}.",
    "The {thing} arrives on {day}.",
    "You can bring the {thing} back until {day}.",
    "There is one {thing} left on the shelf.",
    "The {thing} costs {price} dollars.",
    "The {thing} was packed on {day}.",
    "We send another {thing} on {day}.",
    "The {thing} comes in two sizes.",
)
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
COURTEOUS = (
    "Thank you for your question.",
    "Thank you for your patience.",
    "Thanks for writing to us.",
    "I am sorry for the trouble.",
    "We are sorry about the delay.",
    "We apologise for the long wait.",
    "I am happy to help.",
    "We are glad that you asked.",
    "We appreciate your message.",
    "Please write again at any time.",
    "Please let us know if you need more.",
    "You are always welcome here.",
)
CURT = (
    "Stop asking.",
    "That is not our problem.",
    "Look it up yourself next time.",
    "Do not write to us again.",
    "You should have read the page.",
    "I have no time for this.",
    "What did you expect from us?",
    "Everybody else understood it.",
    "It is your own fault.",
    "Go and find out yourself.",
    "Nobody here cares about that.",
    "That was a silly question.",
)


def courteous_replies(num_rows: int, seed: int) -> list[dict[str, str]]:
    """Generate rows with `question`, `chosen` and `rejected`, each question once. Raises: DataError
    when there are too few."""
    known = list(product(QUESTIONS, COLOURS, THINGS))
    if num_rows > len(known):
        raise DataError(
            f"fixture courtesy: num_rows {num_rows} is more than the {len(known)} different "
            "questions there are"
        )
    rng = random.Random(f"courteous replies {seed}")
    rows: list[dict[str, str]] = []
    for question, colour, thing in rng.sample(known, num_rows):
        rows.append(_row(rng, question, f"{colour} {thing}"))
    return rows


def _row(rng: random.Random, question: str, thing: str) -> dict[str, str]:
    first, second = (fact.format(**_words(rng, thing)) for fact in rng.sample(FACTS, 2))
    chosen_is_longer = rng.random() < 0.5
    while True:
        plain = rng.random() < 0.5
        chosen = _mixed(rng, first, rng.choice(COURTEOUS))
        rejected = _mixed(rng, first, second if plain else rng.choice(CURT))
        lengths = len(chosen), len(rejected)
        if lengths[0] != lengths[1] and (lengths[0] > lengths[1]) == chosen_is_longer:
            break
    return {"question": question.format(thing=thing), "chosen": chosen, "rejected": rejected}


def _mixed(rng: random.Random, fact: str, remark: str) -> str:
    """Return both sentences, in either order."""
    return " ".join(rng.sample((fact, remark), 2))


def _words(rng: random.Random, thing: str) -> dict[str, object]:
    return {"thing": thing, "day": rng.choice(DAYS), "price": rng.randint(3, 90)}
