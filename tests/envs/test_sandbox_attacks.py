"""What a program may try in a sandbox. Each attempt is a real one."""

import errno
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from rl_core.envs import make
from rl_core.envs.tools import bubblewrap, seccomp
from rl_core.envs.tools.sandbox import (
    Execution,
    Outcome,
    Sandbox,
    SandboxMode,
    SandboxPool,
    SandboxSettings,
    lease_pool,
    sandbox_pools,
)
from tests.processes import still_running

SECRET = "the-expected-output-8f3a"


def run(
    pool: SandboxPool, source: str, *, timeout_s: float = 20.0, stdin: str = "", **more: Any
) -> Execution:
    with pool.sandbox(source) as sandbox:
        return sandbox.run(timeout_s=timeout_s, stdin=stdin, **more)


def text(execution: Execution) -> str:
    return (execution.stdout + execution.stderr).decode(errors="replace")


HUNT = r"""
import gc, os, re, sys
found = []
def look(data):
    data = data if isinstance(data, bytes) else str(data).encode()
    found.extend(re.findall(rb"the-expected-output-[0-9a-f]{4}", data))
def look_into(path):
    try:
        if os.path.isfile(path) or path.startswith("/proc"):
            with open(path, "rb") as file: look(file.read(10 ** 6))
    except (OSError, ValueError): pass
for root, folders, files in os.walk("/"):
    folders[:] = [name for name in folders if os.path.join(root, name) not in ("/usr", "/proc", "/root")]
    for name in files: look_into(os.path.join(root, name))
for pid in ("1", "self"):
    for name in ("environ", "cmdline", "mem", "fd/0", "fd/1", "fd/3", "fd/4", "fd/5"): look_into(f"/proc/{pid}/{name}")
try:
    for line in open("/proc/self/maps"):
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        if "r" in line.split()[1] and end - start < 2 ** 26:
            with open("/proc/self/mem", "rb", 0) as memory:
                memory.seek(start)
                try: look(memory.read(end - start))
                except OSError: pass
except OSError: pass
frame = sys._getframe()
while frame:
    look(frame.f_locals)
    frame = frame.f_back
for thing in gc.get_objects():
    if isinstance(thing, dict): look([value for value in thing.values() if isinstance(value, (str, bytes))])
look(os.environ)
look(input() if CONTROL else "")
print(found[0].decode() if found else "nothing")
"""


@pytest.mark.parametrize("control", [False, True])
def test_expected_outputs_are_nowhere_in_the_sandbox(control: bool) -> None:
    # The control proves the hunt: what is put into the input is found.
    tests = [{"input": SECRET if control else "x", "output": SECRET}]
    env = make("lcb", {"timeout_s": 60}, {"reward_spec": {"ground_truth": tests}})
    output = env.step(f"```python\nCONTROL = {control}\n{HUNT}\n```")
    env.close()
    assert output["reward"] == float(control), output  # type: ignore[index]
    assert output["metadata"].get("failure") == (None if control else "wrong answer")  # type: ignore[index]


READS = """
import os
for path in {paths!r}:
    try:
        with open(path, "rb") as file: print("READ", path, file.read(50))
    except OSError as error:
        print("no", type(error).__name__)
"""


def test_the_trainer_s_files_are_not_there(pool: SandboxPool, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text(SECRET)
    site = Path(psutil.__file__).parents[1]
    paths = [
        tmp_path / "secret.txt",
        Path(__file__),
        Path(bubblewrap.__file__),
        Path(psutil.__file__),
        Path.home(),
    ]
    paths += [
        site / "torch" / "__init__.py",
        Path("/etc/passwd"),
        Path("/etc/shadow"),
        Path("/etc/hostname"),
        Path(sys.prefix),
    ]
    execution = run(pool, READS.format(paths=[str(path) for path in paths]))
    assert text(execution).count("no ") == len(paths) and "READ" not in text(execution)


def test_no_other_process_can_be_seen_read_or_signalled(pool: SandboxPool) -> None:
    source = f"""
import os, signal
print("pids", sorted(int(p) for p in os.listdir("/proc") if p.isdigit()))
paths = ["/proc/1/environ", "/proc/1/mem", "/proc/1/maps", "/proc/{os.getpid()}/environ"]
for path in paths + [f"/proc/1/fd/{{n}}" for n in range(6)]:
    try:
        print("READ", path, open(path, "rb").read(10))
    except OSError as error:
        print("no", type(error).__name__)
for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGINT, signal.SIGTERM):
    os.kill(1, number)
print("still here")
"""
    with pool.sandbox(source) as sandbox:
        first, second = sandbox.run(timeout_s=20.0), sandbox.run(timeout_s=20.0)
    assert "READ" not in text(first) and text(first).count("no ") == 10
    assert "pids [1, 2]" in text(first) and "still here" in text(first)
    assert second.outcome == Outcome.FINISHED, "the worker survived the signals"


def test_the_environment_has_nothing_of_ours(
    pool: SandboxPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    with Sandbox(pool.settings) as fresh:
        fresh.load("import os\nprint(sorted(os.environ), os.getcwd(), os.getuid())")
        seen = text(fresh.run(timeout_s=20.0))
    assert seen.startswith(str(sorted([*bubblewrap.ENVIRONMENT, "PWD"]))) and "/tmp 1000" in seen


WRITES = """
import os
for path in {paths!r}:
    try:
        # Opening is enough of an attempt: what can be opened so can be written.
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT * (not path.startswith("/proc"))))
        print("WROTE", path)
    except OSError as error:
        print("no", type(error).__name__)
with open("/tmp/mine", "w") as file: file.write("fine")
print(open("/tmp/mine").read())
"""


def test_nothing_can_be_written_outside(pool: SandboxPool, tmp_path: Path) -> None:
    paths = [
        str(tmp_path / "x"),
        "/x",
        "/usr/x",
        "/etc/x",
        "/dev/x",
        "/proc/sys/kernel/core_pattern",
        "/sandbox/x",
    ]
    paths += [
        f"{bubblewrap.PACKAGES}/numpy/__init__.py",
        bubblewrap.WORKER,
        os.__file__,
        "/proc/self/oom_score_adj",
    ]
    execution = run(pool, WRITES.format(paths=paths))
    assert "WROTE" not in text(execution) and text(execution).count("no ") == len(paths)
    assert text(execution).endswith("fine\n") and list(tmp_path.iterdir()) == []


def test_what_one_program_writes_the_next_does_not_find(pool: SandboxPool) -> None:
    run(pool, "open('/tmp/left', 'w').write('x')")
    assert text(run(pool, "import os\nprint(os.listdir('/tmp'))")) == "['solution.py']\n"


@pytest.mark.parametrize(
    ("source", "seen", "why"),
    [
        ("import socket\nsocket.create_connection(('127.0.0.1', 80))", "PermissionError", "a connection"),
        ("import socket\nsocket.socket(socket.AF_UNIX)", "PermissionError", "a local socket"),
        ("import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM)", "PermissionError", "a datagram"),
        ("import socket\nsocket.socket(socket.AF_INET, socket.SOCK_RAW, 1)", "PermissionError", "a raw socket"),
        ("import urllib.request as u\nu.urlopen('http://127.0.0.1:1/')", "not permitted", "a page"),
        ("import os\nos.fork()", "PermissionError", "a process"),
        ("import os\nwhile True: os.fork()", "PermissionError", "a fork bomb"),
        ("import subprocess\nsubprocess.run(['true'])", "PermissionError", "a command"),
        ("import os\nos.execv('/bin/sh', ['sh'])", "PermissionError", "another program in its place"),
        ("import os\nassert os.system('true') == 0", "AssertionError", "a shell"),
        ("import multiprocessing as m\nm.Process(target=print).start()", "PermissionError", "a worker process"),
        ((
            "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nassert libc.ptrace(16, 1, "
            "0, 0) == 0"
        ),
         "AssertionError",
         "tracing the worker"),
        ("import ctypes\nassert ctypes.CDLL(None).unshare(0x10000000) == 0", "AssertionError",
         "a namespace of its own"),
        ("import ctypes\nassert ctypes.CDLL(None).mount(b'none', b'/tmp', b'tmpfs', 0, 0) == 0", "AssertionError",
         "a mount"),
        ("import ctypes\nassert ctypes.CDLL(None).syscall(57) >= 0", "AssertionError", "fork by its number"),
        ("import ctypes\nassert ctypes.CDLL(None).syscall(435, 0, 0) >= 0", "AssertionError", "clone3"),
        ("import ctypes\nassert ctypes.CDLL(None).setuid(0) == 0", "AssertionError", "another user"),
        ("import os\nos.chroot('/tmp')", "PermissionError", "another root"),
        ("import os\nos.nice(-5)", "PermissionError", "a better priority"),
        ("import resource as r\nr.setrlimit(r.RLIMIT_AS, (r.RLIM_INFINITY,) * 2)", "ValueError", "more memory"),
        ("x = bytearray(10 ** 10)", "MemoryError", "ten gigabytes at once"),
        ("x = []\nwhile True: x.append(bytearray(10 ** 6))", "MemoryError", "memory bit by bit"),
        ("x = 'a'\nwhile True: x += x", "MemoryError", "text that doubles"),
        ("import mmap\nx = [mmap.mmap(-1, 2 ** 26) for _ in range(99)]", "annot allocate", "mapped memory"),
        ("import os\nos.memfd_create('x')", "PermissionError", "memory that no limit counts"),
        ("f = open('/tmp/x', 'wb')\nwhile True: f.write(bytes(10 ** 6))", "File too large", "a large file"),
        ("for i in range(999): open(f'/tmp/{i}', 'wb').write(bytes(10 ** 6))", "No space left", "many files"),
        ("x = [open('/tmp/x', 'w') for _ in range(999)]", "Too many open files", "open files without end"),
        ((
            "import threading, time\nfor _ in range(9999): threading.Thread(target=time.sleep, "
            "args=(1,)).start()"
        ),
         "can't start new thread", "a thread bomb"),
        ("def f(n): return f(n + 1)\nf(0)", "RecursionError", "deep recursion"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt", "an interrupt of its own"),
        ("import nonsense", "ModuleNotFoundError", "a package that is not there"),
        ("import rl_core", "ModuleNotFoundError", "the grader"),
        ("import torch", "ModuleNotFoundError", "the trainer's libraries"),
        ("\0", "null bytes", "no source code at all"),
        ("(" * 5000, "SyntaxError", "brackets a parser could drown in"),
        ("x = " + "-" * 50_000 + "1", "Error", "signs a parser could drown in"),
    ],
)  # fmt: skip
def test_an_attempt_fails_with_an_error(
    pool: SandboxPool, source: str, seen: str, why: str
) -> None:
    execution = run(pool, source)
    assert execution.outcome in (Outcome.FAILED, Outcome.OUTPUT_LIMIT), (why, execution)
    assert seen in text(execution), why


def test_a_child_left_behind_ends_even_without_a_filter(
    monkeypatch: pytest.MonkeyPatch, pool: SandboxPool
) -> None:
    monkeypatch.setattr(seccomp, "program_filter", lambda: None)
    source = (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    os.fork()\n    "
        "time.sleep(999)\nprint('done')"
    )
    with Sandbox(pool.settings) as sandbox:
        sandbox.load(source)
        assert sandbox.run(timeout_s=20.0).stdout == b"done\n"
        below = psutil.Process(sandbox._process.pid).children(recursive=True)
        assert len(below) == 1, "the worker alone is left"


TAMPER = """
import sys, builtins, json, gc, os
def always(*args, **kwargs): return True
for module in list(sys.modules.values()):
    for name in ("_answer", "_find", "plain", "run_test", "finish", "_content", "_wait", "same_result", "same_output"):
        if name in vars(module): setattr(module, name, always)
frame = sys._getframe()
while frame:
    frame.f_globals.update(_answer=always, ANSWER=None)
    frame = frame.f_back
json.dumps = lambda *a, **k: "[4, 5]"
builtins.isinstance = always
for fd in range(3, 64):
    try: os.write(fd, b"\\0" * 64)
    except OSError: pass
def add(xs, y): return None
"""


@pytest.mark.parametrize("source", [TAMPER, TAMPER + "\nos._exit(0)"])
def test_tampering_with_the_worker_in_its_own_process_earns_nothing(source: str) -> None:
    tests = [{"input": "[1]\n2", "output": "[3]", "metadata": {"func_name": "add"}}]
    env = make("lcb", {}, {"reward_spec": {"ground_truth": tests}})
    reply = f"```python\n{source}\n```"
    assert env.step(reply)["reward"] == 0.0  # type: ignore[index]
    good = "```python\ndef add(xs, y): return [x + y for x in xs]\n```"
    assert env.step(good)["reward"] == 1.0, "and the next program is graded as ever"  # type: ignore[index]
    env.close()


def test_a_forged_answer_from_a_test_does_not_reach_the_next(pool: SandboxPool) -> None:
    source = (
        "import sys\nn = int(input())\nprint(n)\nsys.modules['__main__'].n = 9\nimport "
        "builtins\nbuiltins.print = None"
    )
    with pool.sandbox(source) as sandbox:
        outputs = [sandbox.run(timeout_s=20.0, stdin=str(number)).stdout for number in range(3)]
    assert outputs == [b"0\n", b"1\n", b"2\n"]


def test_a_worker_killed_from_outside_is_reported_and_replaced(pool: SandboxPool) -> None:
    with pool.sandbox("print(1)") as sandbox:
        bubblewrap.kill_tree(sandbox._process.pid)
        assert sandbox.run(timeout_s=5.0).outcome == Outcome.LOST
    for waiting in list(pool._warm):
        bubblewrap.kill_tree(waiting._process.pid)
        waiting._process.wait(10)
    assert run(pool, "print(1)").stdout == b"1\n"


def test_both_filters_are_known_for_both_architectures_and_for_no_other() -> None:
    for machine in ("x86_64", "aarch64"):
        outer, inner = seccomp.sandbox_filter(machine), seccomp.program_filter(machine)
        assert outer and inner and len(inner) > len(outer) and len(inner) % 8 == 0
    assert seccomp.sandbox_filter("riscv64") is None


OF_32_BITS = """
import ctypes, mmap
page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(bytes.fromhex("b814000000cd80c3"))  # mov eax, 20 (getpid); int 0x80; ret
print(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))())
"""
OF_X32 = "import ctypes\nprint(ctypes.CDLL(None).syscall(0x40000000 | 39))"


@pytest.mark.skipif(
    platform.machine() != "x86_64", reason="other processors have one set of numbers"
)
@pytest.mark.parametrize("source", [OF_32_BITS, OF_X32], ids=["32 bits", "x32"])
@pytest.mark.parametrize("alone", ["program_filter", "sandbox_filter"])
def test_each_filter_ends_a_program_that_calls_by_other_numbers(
    pool: SandboxPool, monkeypatch: pytest.MonkeyPatch, source: str, alone: str
) -> None:
    other = {"program_filter": "sandbox_filter", "sandbox_filter": "program_filter"}[alone]
    monkeypatch.setattr(seccomp, other, lambda: None)
    with Sandbox(pool.settings) as sandbox:
        sandbox.load(source)
        execution = sandbox.run(timeout_s=20.0)
    assert (execution.outcome, execution.stdout) == (Outcome.FAILED, b"")
    assert b"Traceback" not in execution.stderr, "it did not live to say anything"


CLONES = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for number in (56, 435):
    print(libc.syscall(number, 0, 0, 0, 0, 0, 0), ctypes.get_errno())
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="these are the numbers of x86_64")
def test_clone_is_for_threads_and_clone3_does_not_exist(pool: SandboxPool) -> None:
    # At ENOSYS libc takes clone, whose flags a filter can read.
    assert text(run(pool, CLONES)).split() == ["-1", str(errno.EPERM), "-1", str(errno.ENOSYS)]
    started = (
        "import threading\nthread = threading.Thread(target=print, "
        "args=('beside',))\nthread.start()\nthread.join()"
    )
    assert run(pool, started).stdout == b"beside\n"


LEFT_ALONE = """
import os, sys
from rl_core.envs.tools.sandbox import Sandbox, SandboxSettings
sandbox = Sandbox(SandboxSettings())
sandbox.load("import time\\ntime.sleep(999)")
sandbox.run(timeout_s=0.1)
sandbox._send({"stdin": "", "call": None, "call_bare": False, "timeout_s": 600.0})
print(sandbox._process.pid, flush=True)
os.read(0, 1)
"""


def test_a_killed_trainer_leaves_no_sandbox_behind() -> None:
    trainer = subprocess.Popen(
        [sys.executable, "-c", LEFT_ALONE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert trainer.stdout is not None
    monitor = psutil.Process(int(trainer.stdout.readline()))
    below = [monitor, *monitor.children(recursive=True)]
    trainer.kill()
    trainer.communicate()
    assert len(below) > 1 and not still_running(below)


def test_after_all_this_no_process_file_or_thread_is_left() -> None:
    import threading

    before = {thread.ident for thread in threading.enumerate()}
    files = set(os.listdir("/tmp"))
    descriptors = len(os.listdir("/proc/self/fd"))
    lease = lease_pool(SandboxSettings(memory_bytes=128 * 2**20))
    children = {process.pid for process in psutil.Process().children(recursive=True)}
    for source in ("print(1)", "while True: pass", "import os\nos._exit(1)"):
        run(lease.value, source, timeout_s=0.3)
    lease.release()
    unsafe = lease_pool(SandboxSettings(mode=SandboxMode.UNSAFE))
    run(unsafe.value, "open('x', 'w').write('x')")
    unsafe.release()
    assert {process.pid for process in psutil.Process().children(recursive=True)} <= children
    assert {thread.ident for thread in threading.enumerate()} == before
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert {
        name for name in set(os.listdir("/tmp")) - files if name.startswith("rl-train")
    } == set()
    assert SandboxSettings(memory_bytes=128 * 2**20) not in sandbox_pools._in_use
