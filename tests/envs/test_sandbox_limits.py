"""What a program may do to last, to fill the machine or to end oddly; and what holds without
bubblewrap."""

import threading
import time

import psutil
import pytest

from rl_core.envs import make
from rl_core.envs.tools import bubblewrap
from rl_core.envs.tools.sandbox import (
    Call,
    Execution,
    Outcome,
    SandboxMode,
    SandboxPool,
    SandboxSettings,
    lease_pool,
)
from rl_core.envs.tools.workers import sandbox_worker
from rl_core.errors import EnvError


def run(
    pool: SandboxPool, source: str, *, timeout_s: float = 20.0, call: Call | None = None
) -> Execution:
    with pool.sandbox(source) as sandbox:
        return sandbox.run(timeout_s=timeout_s, call=call)


def text(execution: Execution) -> str:
    return (execution.stdout + execution.stderr).decode(errors="replace")


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("while True: pass", "computing for ever"),
        ("import time\ntime.sleep(999)", "sleeping past the deadline"),
        ((
            "import signal as s, time\nfor n in set(s.Signals) - {9, 19}: s.signal(n, "
            "s.SIG_IGN)\nwhile 1: time.sleep(1)"
        ),
         "ignoring every signal"),
        ("while True:\n    try:\n        while True: pass\n    except BaseException: continue", "catching everything"),
        ("import threading, time\nthreading.Thread(target=time.sleep, args=(999,)).start()", "a thread that stays"),
        ("import atexit, time\natexit.register(time.sleep, 999)", "staying at exit"),
        ("import sys\nclass S:\n    def flush(self):\n        while True: pass\nsys.stdout = S()",
         "a stream that never flushes"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", "stopping itself"),
        ("9 ** 9 ** 9", "a number without end"),
        ("import re\nre.match('(a+)+$', 'a' * 99 + 'b')", "a pattern that backtracks"),
        ("import sys\nsys.setswitchinterval(1e9)\nwhile True: pass", "never giving way"),
    ],
)  # fmt: skip
def test_a_deadline_is_kept(pool: SandboxPool, source: str, why: str) -> None:
    started = time.monotonic()
    execution = run(pool, source, timeout_s=0.4)
    assert execution.outcome == Outcome.TIMEOUT, (why, execution)
    assert time.monotonic() - started < 30


@pytest.mark.parametrize(
    "source",
    [
        "while True: print('x' * 10 ** 6)",
        "import os\nwhile True: os.write(1, b'x' * 10 ** 6)",
        "import sys\nwhile True:\n    try: sys.stderr.write('x' * 10 ** 6)\n    except OSError: "
        "break",
        "import os\nfor _ in range(10 ** 4):\n    try: os.write(1, bytes(10 ** 6))\n    except "
        "OSError: pass",
    ],
)
def test_ten_gigabytes_of_output_are_cut(pool: SandboxPool, source: str) -> None:
    execution = run(pool, source)
    assert execution.outcome == Outcome.OUTPUT_LIMIT
    assert len(execution.stdout) + len(execution.stderr) <= 2 * pool.settings.output_bytes


@pytest.mark.parametrize(
    ("source", "stdout", "outcome"),
    [
        ("import os\nos._exit(0)", b"", Outcome.FINISHED),
        ("import os\nos._exit(7)", b"", Outcome.FAILED),
        ("import os\nos.abort()", b"", Outcome.FAILED),
        ("import ctypes\nctypes.string_at(0)", b"", Outcome.FAILED),
        ("pass", b"", Outcome.FINISHED),
    ],
)
def test_an_end_of_its_own_gives_what_was_printed_and_no_more(
    pool: SandboxPool, source: str, stdout: bytes, outcome: Outcome
) -> None:
    execution = run(pool, source)
    assert (execution.stdout, execution.outcome) == (stdout, outcome)


def test_without_bubblewrap_nothing_is_run_unless_the_recipe_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tests = {"reward_spec": {"ground_truth": [{"input": "1", "output": "1"}]}}
    monkeypatch.setattr(bubblewrap, "_program", lambda: "/bin/false")
    bubblewrap._identity.cache_clear()
    try:
        with pytest.raises(EnvError, match="sandbox: unsafe"):
            make("lcb", {}, tests)
        with pytest.raises(EnvError, match="sandbox: unsafe"):
            make("searchcode", {}, {"reward_spec": {"ground_truth": "1"}})
        env = make("lcb", {"sandbox": "unsafe"}, tests)
        assert env.step("```python\nprint(input())\n```")["reward"] == 1.0  # type: ignore[index]
        env.close()
    finally:
        bubblewrap._identity.cache_clear()


def test_an_unsafe_run_still_has_its_limits() -> None:
    lease = lease_pool(SandboxSettings(mode=SandboxMode.UNSAFE, memory_bytes=256 * 2**20))
    assert "MemoryError" in text(run(lease.value, "x = bytearray(10 ** 10)"))
    assert "PermissionError" in text(run(lease.value, "import os\nos.fork()"))
    assert run(lease.value, "while True: pass", timeout_s=0.3).outcome == Outcome.TIMEOUT
    assert run(lease.value, "def f(x): return x + 1", call=Call("f", [1])).result == b"2"
    lease.release()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            "n = 0\nwhile True:\n    open(f'/tmp/{n}', 'w').close()\n    n += 1",
            "more than 4096 files in /tmp",
        ),
        (
            "import os\nn = 0\nwhile True:\n    os.mkdir(f'/dev/shm/{n}')\n    n += 1",
            "more than 4096 files in /dev/shm",
        ),
    ],
    ids=["files", "folders"],
)
def test_the_kernels_own_memory_is_bounded(pool: SandboxPool, source: str, said: str) -> None:
    """An empty file has no bytes that a limit would count."""
    execution = run(pool, source, timeout_s=15)
    assert execution.outcome == Outcome.FAILED and execution.wall_s < 15
    assert said in text(execution)


def test_threads_are_counted_where_the_kernel_counts_none(pool: SandboxPool) -> None:
    source = "import threading, time\nfor _ in range(30):\n    threading.Thread(target=time.sleep, "
    source += "args=(99,)).start()\nprint('started', flush=True)\ntime.sleep(99)"
    limits = {"threads": 20, "files": 4096}
    with pool.sandbox(source) as sandbox:
        worker = psutil.Process(sandbox._process.pid)
        counted: list[bytes] = []

        def look() -> None:
            end = time.monotonic() + 15
            while not counted and time.monotonic() < end:
                for child in worker.children(recursive=True):
                    if excess := sandbox_worker._excess(child.pid, limits):
                        counted.append(excess)
                time.sleep(0.01)

        looking = threading.Thread(target=look)
        looking.start()
        sandbox.run(timeout_s=2)
        looking.join()
    assert counted == [b"killed: more than 20 threads\n"]


ANOTHERS = """
import os, resource, struct, fcntl, socket
def tried(what):
    try:
        what()
        print("done")
    except OSError as error:
        print(type(error).__name__)
tried(lambda: resource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0)))
tried(lambda: resource.prlimit(os.getppid(), resource.RLIMIT_AS, (4096, 4096)))
tried(lambda: os.sched_setaffinity(1, {0}))
tried(lambda: os.setpriority(os.PRIO_PROCESS, 1, 19))
file = open("/tmp/locked", "wb")
tried(lambda: fcntl.lockf(file, fcntl.LOCK_EX, 1, 7))
one, other = socket.socketpair()
tried(lambda: socket.send_fds(one, [b"x"], [file.fileno()]))
"""


def test_a_program_changes_no_limit_of_its_sandbox(pool: SandboxPool) -> None:
    with pool.sandbox(ANOTHERS) as sandbox:
        for _ in range(2):
            assert sandbox.run(timeout_s=20).stdout.split() == [b"PermissionError"] * 6


def test_what_right_answers_do_with_themselves_is_let_through(pool: SandboxPool) -> None:
    source = (
        "import asyncio, os, resource, threading\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
        "threading.stack_size(2**26)\n"
        "async def main():\n    await asyncio.sleep(0)\n    return 7\n"
        "print(asyncio.run(main()), len(os.sched_getaffinity(0)) > 0)"
    )
    assert run(pool, source).stdout == b"7 True\n"
