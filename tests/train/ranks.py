"""Real ranks for tests: processes with a gloo group of some of them per job, kept for some jobs.

Groups are never freed: a process that freed them ended once with a broken heap. But their threads
poll, and hundreds of them slow down whatever else is tested, so new processes take over after some
jobs, and none outlive a test module. They are forked from a process that has imported what they
need.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

R = TypeVar("R")
JOBS_OF_A_LIFE = 24
_groups: list[Any] = []
"""Of this process's jobs."""
MEETING_S, TIMEOUT_S = 300, 600
"""Until ranks that wait for each other, and whole jobs, count as hung: a busy machine imports for a
minute."""


class Ranks:
    """Processes that run jobs. Start them with `with`; `run` gives the answers in rank order."""

    def __init__(self, num_processes: int = 2) -> None:
        self.num_processes = num_processes

    def __enter__(self) -> Ranks:
        self._folder = tempfile.TemporaryDirectory(prefix="rl-train-ranks-")
        self._num_meetings = 0
        self._answers: dict[str, list[Any]] = {}
        self._start()
        return self

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["rl_core.distributed.fork_server.worker_imports"])
        self._num_jobs = 0
        self._pipes: list[Connection] = []
        self._processes = []
        for _ in range(self.num_processes):
            mine, theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(mine)
            self._processes.append(process)

    def __exit__(self, *failure: object) -> None:
        self._stop()
        self._folder.cleanup()

    def _stop(self, patience_s: float = 10) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(patience_s)
            if process.is_alive():
                process.kill()
                process.join()

    def run(self, world_size: int, job: Callable[..., R], *args: Any, **kwargs: Any) -> list[R]:
        """Call `job(rank_info, *args, **kwargs)` on every rank; it must stand in an importable
        module."""
        if self._num_jobs == JOBS_OF_A_LIFE:
            self._restart()
        self._num_jobs += 1
        self._num_meetings += 1
        # A free port may be somebody else's by the time it is used.
        meeting = str(Path(self._folder.name) / str(self._num_meetings))
        for rank in range(world_size):
            self._pipes[rank].send((rank, world_size, meeting, job, args, kwargs))
        answers = []
        for rank in range(world_size):
            if not self._pipes[rank].poll(TIMEOUT_S):
                # A late answer must not be taken for the next job's.
                self._restart()
                raise TimeoutError(
                    f"rank {rank} of {world_size} did not answer within {TIMEOUT_S} s"
                )
            try:
                answers.append(self._pipes[rank].recv())
            except EOFError as error:
                self._restart()
                raise RuntimeError(f"rank {rank} of {world_size} died; see its stderr") from error
        if failures := [answer for done, answer in answers if not done]:
            # Ranks that did not meet count their groups differently from then on, and would never
            # meet again.
            self._restart()
            raise RuntimeError(f"a rank failed:\n{failures[0]}")
        return [answer for _, answer in answers]

    def once(self, world_size: int, job: Callable[..., R], *args: Any) -> list[R]:
        """`run`, or the answers to the same job with equal arguments; nobody may write into
        them."""
        asked = repr((world_size, job.__module__, job.__qualname__, args))
        if asked not in self._answers:
            self._answers[asked] = self.run(world_size, job, *args)
        return self._answers[asked]

    def _restart(self) -> None:
        self._stop(patience_s=0)
        self._start()


def serve(pipe: Connection) -> None:
    """Body of a process: jobs until the pipe closes."""
    while True:
        try:
            rank, world_size, meeting, job, args, kwargs = pipe.recv()
        except EOFError:
            # Not by way of destructors, groups' among them.
            os._exit(0)
        try:
            pipe.send((True, run_job(rank, world_size, meeting, job, args, kwargs)))
        except Exception:
            pipe.send((False, traceback.format_exc()))


def run_job(
    rank: int, world_size: int, meeting: str, job: Callable[..., Any], args: Any, kwargs: Any
) -> Any:
    """One job within a process group of its own."""
    import torch
    import torch.distributed as dist

    from rl_core.ranks.rank_info import RankInfo

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        f"file://{meeting}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=MEETING_S),
    )
    try:
        return job(RankInfo(rank, world_size, "cpu", 1), *args, **kwargs)
    finally:
        _groups.extend(dist.distributed_c10d._world.pg_map)
        dist.destroy_process_group()
