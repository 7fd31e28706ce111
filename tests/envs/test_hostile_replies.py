"""Replies made to keep a grader busy: each environment grades all of them while a timer of the
kernel, which no code can hold up, would end its process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

LENGTH = 60_000
PATIENCE_S = 20
"""Seconds of processor time for all replies of an environment. A pattern that is quadratic in one of
them takes several times as long."""
ROWS = {
    "aime": "42",
    "geo3k": "12",
    "gsm8k": "1234",
    "gsm8k_multi_turn": "1234",
    "lcb": [{"input": "1", "output": "1", "testtype": "stdin"}],
    "multiple_choice": "Bern",
    "searchcode": "12",
    "search": {"target": ["Paris"]},
}
UNITS = (
    *(" ", "\n", "\t", "`", "-", "1,", "1", "\\text{", "(", "$", "'", "{", "a "),
    *("<tool>", "<search>", "<solution>", "<think>", "<answer>", "</think>", "\\boxed{"),
)
AROUND = (
    *(("", ""), ("", "x"), ("#### =", "x"), ("```", "`"), ("answer", ":"), ("<tool>", "}")),
    *(("\\boxed{", "}"), ("</think>\\boxed{B", "x}")),
)
GRADE = f"""
import json, resource, sys
from rl_core.envs.registration import make

resource.setrlimit(resource.RLIMIT_CPU, ({PATIENCE_S}, {PATIENCE_S}))
name, truth = sys.argv[1], json.loads(sys.argv[2])
row = {{"reward_spec": {{"ground_truth": truth}}, "options": ["Bern", "Basel"]}}
options = {{"search_url": "http://127.0.0.1:9/"}} if name.startswith("search") else {{}}
keeper = make(name, options, row)  # environments share a client as long as one is open
for unit in {UNITS!r}:
    for start, end in {AROUND!r}:
        reply = start + unit * ({LENGTH} // len(unit)) + end
        print(repr(start), repr(unit), repr(end), flush=True)
        env = make(name, options, row)
        assert env.step(reply)["reward"] <= 0.1, "a reply without an answer was paid"
        env.close()
"""


@pytest.mark.parametrize("name", ROWS)
def test_a_reply_of_any_text_is_graded_in_linear_time(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", GRADE, name, json.dumps(ROWS[name])],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    last = done.stdout.splitlines()[-1:] or [""]
    assert done.returncode == 0, f"ended at {last[0]}: {done.stderr[-500:]}"
