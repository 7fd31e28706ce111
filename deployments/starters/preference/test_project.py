"""What the pairs of this project keep to: python -m unittest, or pytest."""

import json
import unittest
from pathlib import Path

ROWS = Path(__file__).parent / "rows"


def pairs_of(name: str) -> list[dict[str, str]]:
    """Return the pairs of a file."""
    text = (ROWS / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


class PairsTest(unittest.TestCase):
    """The pairs differ, no question is in both files, and length does not tell them apart."""

    def test_the_answers_of_a_pair_differ(self) -> None:
        for pair in pairs_of("train") + pairs_of("held-out"):
            self.assertNotEqual(pair["chosen"], pair["rejected"])

    def test_no_question_is_in_both_files(self) -> None:
        train, held_out = pairs_of("train"), pairs_of("held-out")
        self.assertFalse(
            {pair["question"] for pair in train} & {pair["question"] for pair in held_out}
        )

    def test_the_better_answer_is_not_simply_the_longer_one(self) -> None:
        pairs = pairs_of("train")
        longer = sum(len(pair["chosen"]) > len(pair["rejected"]) for pair in pairs)
        self.assertTrue(0.2 < longer / len(pairs) < 0.8)


if __name__ == "__main__":
    unittest.main()
