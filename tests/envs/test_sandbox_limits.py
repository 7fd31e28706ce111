"""What a program may do to last, to fill the machine or to end oddly; and what holds without
bubblewrap."""

import time

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
