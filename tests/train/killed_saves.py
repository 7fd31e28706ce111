"""Saves that are interrupted by SIGKILL, and what a reader then finds; run as a program by
`test_killed_saves`.

Forked children stand for the trainer: they load the last complete checkpoint and go on, a step and
a save at a time. The weights after n steps are known from a child that nobody killed, so a
checkpoint that loads wrong is seen.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from rl_core.models.bundle import ModelBundle
from rl_core.ranks.rank_info import RankInfo
from rl_core.runs.run_folder import RunFolder
from rl_core.train.fsdp import FSDPBackend
from rl_core.train.stacks.token_stack import TrainStack
from schemas.recipe import EmaFullConfig
from tests.train.jobs import Setup, batch, make_backend, make_bundle, make_stack

NUM_KILLS = 10
NUM_STEPS = 25


def trainer(bundle: ModelBundle) -> tuple[FSDPBackend, TrainStack]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    setup = Setup(bundle.source, ema=EmaFullConfig(decay=0.9))
    backend = make_backend(RankInfo(0, 1, "cpu", 1), setup, bundle=bundle)
    return backend, make_stack(backend, setup)


def fingerprint(backend: FSDPBackend) -> str:
    """Digest of weights, averages, moments and schedule."""
    digest = hashlib.sha256()
    assert backend.ema is not None
    for name, value in backend.trainable.items():
        state = backend.optimizer.state[value]
        tensors: list[Any] = [
            value,
            backend.ema.shadow[name],
            state["exp_avg"],
            state["exp_avg_sq"],
            state["step"],
        ]
        for tensor in tensors:
            whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
            digest.update(whole.detach().numpy().tobytes())
    digest.update(json.dumps([backend.scheduler.last_epoch, backend.ema.num_updates]).encode())
    return digest.hexdigest()


def undisturbed(bundle: ModelBundle, folder: RunFolder, say: Callable[[Any], None]) -> None:
    """Say the fingerprint after every step, and the seconds one save takes."""
    backend, stack = trainer(bundle)
    found = {}
    for step in range(1, NUM_STEPS + 1):
        stack.train(batch(step))
        found[step] = fingerprint(backend)
    start = time.perf_counter()
    with folder.publish_checkpoint(1, {"step": 0}, 1) as building:
        backend.save(str(building))
    say({"fingerprints": found, "save_s": time.perf_counter() - start})


def train_and_save(
    bundle: ModelBundle, folder: RunFolder, until: int, say: Callable[[Any], None]
) -> None:
    """Go on from the last complete checkpoint, up to step `until`."""
    backend, stack = trainer(bundle)
    last = folder.last_complete()
    if last:
        backend.load(str(folder.checkpoint(last)))
    for step in range(last + 1, until + 1):
        stack.train(batch(step))
        say("saving")
        with folder.publish_checkpoint(step, {"step": step}, 2) as building:
            backend.save(str(building))


def read(bundle: ModelBundle, folder: RunFolder, say: Callable[[Any], None]) -> None:
    """Say which checkpoint counts as the last, and the fingerprint of what it loads as."""
    backend, _ = trainer(bundle)
    last = folder.last_complete()
    backend.load(str(folder.checkpoint(last)))
    say({"last": last, "fingerprint": fingerprint(backend)})


class Child:
    """A forked process with a pipe to hear it by."""

    def __init__(self, body: Callable[..., None], *args: Any) -> None:
        ours, theirs = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(ours)
            code = 1
            try:
                body(*args, lambda message: os.write(theirs, json.dumps(message).encode() + b"\n"))
                code = 0
            except Exception:
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(theirs)
        self.lines = os.fdopen(ours)

    def hear(self) -> Any:
        return json.loads(self.lines.readline())

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.lines.close()
        return code


def main(model_dir: str, run_dir: str, seed: int) -> None:
    torch.set_num_threads(1)
    draw = random.Random(seed)
    scratch, folder = RunFolder(Path(run_dir) / "scratch"), RunFolder(Path(run_dir) / "run")
    scratch.create("name: scratch")
    folder.create("name: killed")
    # Loaded once: the children inherit it.
    bundle = make_bundle(model_dir)
    child = Child(undisturbed, bundle, scratch)
    known = child.hear()
    assert child.wait() == 0
    # From the first kill on there is something to lose.
    child = Child(train_and_save, bundle, folder, 1)
    assert child.wait() == 0
    rounds = []
    for kill in range(NUM_KILLS):
        before = folder.last_complete()
        child = Child(train_and_save, bundle, folder, NUM_STEPS)
        assert child.hear() == "saving"
        # One moment in each tenth of a save.
        time.sleep(known["save_s"] * (kill + draw.random()) / NUM_KILLS)
        child.kill()
        assert child.wait() == -signal.SIGKILL
        left = [
            path.name for path in folder.checkpoints.iterdir() if not (path / ".complete").is_file()
        ]
        reader = Child(read, bundle, folder)
        found = reader.hear()
        assert reader.wait() == 0
        right = found["fingerprint"] == known["fingerprints"][str(found["last"])]
        rounds.append({"before": before, "last": found["last"], "right": right, "left": left})
    print(json.dumps(rounds))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
