"""What the tests of `Outside` build in another process; only the standard library, as over
there."""

from __future__ import annotations

import os
import time

from rl_core.errors import WeightMismatch


class Fragile:
    """Answers, and fails in several ways."""

    def __init__(self, text: str) -> None:
        self.text = text

    def say(self, more: str) -> str:
        return self.text + more + os.environ["OUTSIDE"]

    def fail_as_ours(self) -> None:
        raise WeightMismatch(self.text)

    def fail_as_theirs(self) -> None:
        raise KeyError(self.text)

    def work(self, seconds: float) -> str:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pass
        return "done"

    def stand_still(self) -> None:
        time.sleep(600)
