"""A file of good rows with a thousand bad ones of ten kinds among them."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

GOOD: dict[str, Any] = {
    "prompt": [{"role": "user", "content": "1 + 2"}],
    "env_class": "gsm8k",
    "reward_spec": {"method": "rule", "ground_truth": "3"},
}
MESSAGE = GOOD["prompt"][0]
BAD: dict[str, Any] = {
    "missing": {**GOOD, "prompt": None},
    "not a list of messages": {**GOOD, "prompt": {"role": "user"}},
    "no user message": {**GOOD, "prompt": [{"role": "system", "content": "x"}]},
    "unknown role": {**GOOD, "prompt": [MESSAGE, {"role": "robot", "content": "x"}]},
    "content is not a string": {**GOOD, "prompt": [MESSAGE, {"role": "assistant", "content": 5}]},
    "unknown environment": {**GOOD, "env_class": "gsm9k"},
    "missing ground_truth": {**GOOD, "reward_spec": {"method": "rule"}},
    "not a ground truth": {**GOOD, "reward_spec": {"ground_truth": True}},
    "wrong type": {**GOOD, "extra_info": "text"},
    "unreadable line": '{"prompt": ',
}
COUNTS = {reason: 55 + 10 * i for i, reason in enumerate(BAD)}
"""1,000 in all."""


def write_ten_kinds(path: Path) -> dict[str, int]:
    """4,000 rows, every fourth bad. Returns: the line of the first bad row of each kind."""
    reasons = list(Counter(COUNTS).elements())
    lines, first = [], {}
    for i in range(4000):
        reason = reasons[i // 4] if i % 4 == 3 else None
        row = GOOD if reason is None else BAD[reason]
        lines.append(row if isinstance(row, str) else json.dumps(row))
        if reason is not None:
            first.setdefault(reason, i + 1)
    path.write_text("\n".join(lines) + "\n")
    return first
