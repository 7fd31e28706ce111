"""What this project pays for: python -m unittest, or pytest."""

import json
import unittest
from pathlib import Path

from my_reward import Thin
from PIL import Image

from rl_core.rewards import Sample

ROWS = Path(__file__).parent / "rows"


def prompts_of(name: str) -> set[str]:
    """Return the prompts of a file."""
    lines = (ROWS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return {json.loads(line)["prompt"] for line in lines}


class ProjectTest(unittest.TestCase):
    """The reward is what it says, and no prompt is in both files."""

    def test_thin_is_the_dark_share(self) -> None:
        samples = [
            Sample(prompt="", image=Image.new("RGB", (8, 8), shade)) for shade in ("white", "black")
        ]
        self.assertEqual(list(Thin(Thin.Config()).score_images(samples)), [0.0, 1.0])

    def test_no_prompt_is_in_both_files(self) -> None:
        self.assertFalse(prompts_of("train") & prompts_of("held-out"))


if __name__ == "__main__":
    unittest.main()
