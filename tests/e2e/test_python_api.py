"""Several runs in one process, as in a notebook: one that fails, one that is stopped, and continued
in an event loop. What the process had before it has afterwards."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command import LIMIT_S, REPOSITORY

pytestmark = pytest.mark.slow

NOTEBOOK = """
import asyncio, os, signal, sys
from pathlib import Path

import rl_core as rl
from rl_core.envs import BaseTextEnv
from rl_core.errors import UserError

class Vowels(BaseTextEnv):
    def step(self, action):
        self.turns += 1
        share = sum(one in "aeiou" for one in action) / max(1, len(action))
        return {"observations": [], "reward": share, "done": True, "metadata": {}}

class Broken(Vowels):
    def step(self, action):
        return 1 / 0

def rows(verb):
    return [{"prompt": [{"role": "user", "content": f"{verb} {one}"}], "env_class": "vowels",
             "reward_spec": {"ground_truth": "a"}} for one in range(8)]

def train(environment, callbacks=()):
    recipe = {"name": "notebook", "model": {"path": sys.argv[1]},
              "fsdp": {"param_dtype": "float32"},
              "data": {"train": ["a"], "eval": ["a"], "max_prompt_length": 100},
              "rollout": {"samples_per_prompt": 2, "max_new_tokens": 4},
              "evaluation": {"max_new_tokens": 4}, "placement": {"threads_per_device": 1},
              "training": {"num_iterations": 2, "steps_per_iteration": 1, "prompts_per_step": 2}}
    return rl.train(recipe, rows=rows("say"), held_out=rows("tell"), quiet=True,
                    environments={"vowels": environment}, callbacks=callbacks)

async def in_a_loop():
    return train(Vowels)

def stop(event):
    if event.step == 2:
        raise rl.StopTraining

def state():
    handlers = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    shown = {key: os.environ.get(key) for key in ("TQDM_DISABLE", "PYTHONBREAKPOINT")}
    return handlers, shown, os.getcwd()

before = state()
try:
    train(Broken)
except UserError as error:
    assert "ZeroDivisionError: division by zero (" in str(error), error
else:
    raise AssertionError("a broken environment trained")
stopped = train(Vowels, [stop])
assert stopped.model is None and len(stopped.metrics) == 1, stopped
older = Path(os.environ["RL_TRAIN_HOME"]) / "runs" / "notebook-of-another-name"
older.mkdir()
(older / "run.json").write_text("{}")
finished = asyncio.run(in_a_loop())
assert finished.name == stopped.name and len(finished.metrics) == 2, finished
assert state() == before, (before, state())
print(finished.model)
"""


@pytest.mark.long
def test_runs_in_one_process_leave_it_as_it_was(tiny_model_dir: Path, tmp_path: Path):
    (tmp_path / "notebook.py").write_text(NOTEBOOK)
    done = subprocess.run(
        [sys.executable, "notebook.py", str(tiny_model_dir)],
        cwd=tmp_path,
        env=os.environ | {"RL_TRAIN_HOME": str(tmp_path / "home"), "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "models:/rl-train-notebook/1" in done.stdout
