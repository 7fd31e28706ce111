"""Program inside a sandbox: a small process that forks one child per test of one program. Standard
library only.

Under bubblewrap it is the sandbox's process 1, which nothing inside can signal, and it is not
dumpable, so nothing inside can read or trace it. It reads requests from descriptor 0 and answers on
descriptor 1:

* first `{"source", "packages", "preload", "program_filter", "limits"}`, then per test `{"stdin",
  "call", "call_bare", "timeout_s"}`;
* a request is `LENGTH`, then JSON; an answer is `ANSWER`, then standard output, standard error and
  result as bytes.

Everything in an answer may be forged by the program: the grader, outside, compares it with expected
outputs that never enter the sandbox. The end of the requests ends the sandbox and everything in it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import resource
import select
import signal
import struct
import sys
import time
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TextIO

if TYPE_CHECKING:
    from rl_core.envs.tools.workers.sandbox_requests import Limits, Request, Setup

LENGTH = struct.Struct(">Q")
ANSWER = struct.Struct(">BiddQQQ")
"""Header of an answer: outcome, exit code or signal, wall and cpu seconds, lengths of the three
blocks."""
EXITED, SIGNALLED, TIMED_OUT = 0, 1, 2

RESULT_FD = 3
SOURCE_NAME = "solution.py"
STACK_BYTES = 128 * 2**20
_PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 4, 38, 22, 2
_PROGRAM_FAILED, _WORKER_FAILED = 1, 120
WATCH_S = 0.05
"""Seconds between looks at what a program has that no limit of a process counts."""
WRITABLE = ("/tmp", "/dev/shm")

LIBC = ctypes.CDLL(None, use_errno=True)
PRELUDE = "import bisect, collections, functools, heapq, itertools, math, operator, os, re, sys"
STARS = ("typing", "collections", "itertools", "functools", "heapq", "bisect", "math")
"""Modules that benchmark solutions take for granted: `List[int]` and `heappush` without an
import."""

Function = types.FunctionType | types.MethodType


class Requests:
    """Reader of complete requests."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def next(self) -> Any:
        """Return the next request, or None at the end."""
        head = self._exactly(LENGTH.size)
        if head is None:
            return None
        return json.loads(self._exactly(*LENGTH.unpack(head)) or b"null")

    def _exactly(self, size: int) -> bytes | None:
        parts: list[bytes] = []
        while size:
            part = os.read(self.fd, min(size, 2**20))
            if not part:
                return None
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def main() -> None:
    """Serve one program's tests until the requests end."""
    requests, answers_fd = Requests(os.dup(0)), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    # Process 1 is immune to signals it does not handle; Python would handle this one.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    prctl(_PR_SET_DUMPABLE, 0)
    namespace = prelude()
    setup = requests.next()
    if setup is None:
        return
    sys.path += setup["packages"]
    for name in setup["preload"]:
        # Once here rather than in every test; a program that imports a missing package sees the
        # error itself.
        with contextlib.suppress(ImportError):
            __import__(name)
    # What no fork collects, no fork copies.
    gc.freeze()
    with open(SOURCE_NAME, "w", encoding="utf-8", errors="surrogatepass") as file:
        file.write(setup["source"])
    while (request := requests.next()) is not None:
        answer = run_test(setup, request, namespace, requests.fd, answers_fd)
        while answer:
            answer = answer[os.write(answers_fd, answer) :]


def prelude() -> dict[str, object]:
    """Return the names that every program finds; none shadows a built-in one, such as `pow`."""
    names: dict[str, Any] = {}
    exec(PRELUDE, names)
    for module in STARS:
        exec(f"from {module} import *", names)
    builtin = names.pop("__builtins__")
    return {name: value for name, value in names.items() if name not in builtin}


def run_test(
    setup: Setup,
    request: Request,
    namespace: dict[str, object],
    requests_fd: int,
    answers_fd: int,
) -> bytes:
    """Fork a child for the test, wait for its end or its deadline, kill its remains, and return the
    answer's bytes."""
    stdin = os.memfd_create("stdin")
    data = request["stdin"].encode("utf-8", "surrogatepass")
    while data:
        data = data[os.write(stdin, data) :]
    os.lseek(stdin, 0, os.SEEK_SET)
    outputs = [os.memfd_create(name) for name in ("stdout", "stderr", "result")]
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        code = _WORKER_FAILED
        try:
            os.close(requests_fd)
            os.close(answers_fd)
            code = child_main(setup, request, namespace, stdin, outputs)
        finally:
            os._exit(code)
    timed_out, excess = _wait(child, request["timeout_s"], requests_fd, setup["limits"])
    _, status, usage = os.wait4(child, 0)
    wall_s = time.monotonic() - started
    _end_leftovers(child)
    os.close(stdin)
    blocks = [_content(fd, setup["limits"]["output_bytes"]) for fd in outputs]
    blocks[1] += excess
    how, code = (
        (SIGNALLED, os.WTERMSIG(status))
        if os.WIFSIGNALED(status)
        else (EXITED, os.WEXITSTATUS(status))
    )
    head = ANSWER.pack(
        TIMED_OUT if timed_out else how,
        code,
        wall_s,
        usage.ru_utime + usage.ru_stime,
        *map(len, blocks),
    )
    return head + b"".join(blocks)


def _wait(child: int, timeout_s: float, requests_fd: int, limits: Limits) -> tuple[bool, bytes]:
    """Wait for the child; kill it at its deadline, when it has more of what no limit of a process
    counts, or at once when the requests have ended.

    Returns: whether it was the deadline, and a line that says what it had too much of.
    """
    ended = os.pidfd_open(child)
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.register(requests_fd, 0)
    deadline = time.monotonic() + timeout_s
    ready: list[int] = []
    excess = b""
    while not ready and not excess and (left := deadline - time.monotonic()) > 0:
        ready = [fd for fd, _ in poll.poll(max(1, int(min(left, WATCH_S) * 1000)))]
        excess = b"" if ready else _excess(child, limits)
    os.close(ended)
    if ended not in ready:
        os.kill(child, signal.SIGKILL)
    if requests_fd in ready:
        _end_leftovers(child)
        os._exit(0)
    return not ready and not excess, excess


def _excess(child: int, limits: Limits) -> bytes:
    """Return a line about files or threads beyond their limits, or nothing.

    The file systems are limited in bytes, and an empty file has none but takes a kilobyte of the
    kernel's. The kernel counts threads by user, and does not count those of root.
    """
    if _num_threads(child) > limits["threads"]:
        return b"killed: more than %d threads\n" % limits["threads"]
    for place in WRITABLE if os.getpid() == 1 else ():
        found = os.statvfs(place)
        if found.f_files - found.f_ffree > limits["files"]:
            return b"killed: more than %d files in %s\n" % (limits["files"], place.encode())
    return b""


def _num_threads(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name, in brackets, may hold anything.
            return int(file.read().rpartition(b")")[2].split()[17])
    except OSError:
        return 0


def _end_leftovers(child: int) -> None:
    # A program can leave processes only where no seccomp filter holds it.
    try:
        if os.getpid() == 1:
            os.kill(-1, signal.SIGKILL)
        else:
            os.killpg(child, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
    try:
        while os.waitpid(-1, 0)[0]:
            pass
    except ChildProcessError:
        return


def _content(fd: int, limit: int) -> bytes:
    data = os.pread(fd, limit, 0)
    os.close(fd)
    return data


def child_main(
    setup: Setup,
    request: Request,
    namespace: dict[str, object],
    stdin: int,
    outputs: list[int],
) -> int:
    """Lock down the child process, run the program, and return its exit code."""
    os.setsid()
    stdout, stderr, result = outputs
    # The last duplicate may overwrite a descriptor still needed, so all move up first.
    high = [os.dup(fd) for fd in (stdin, stdout, stderr, result)]
    for target, fd in enumerate(high):
        os.dup2(fd, target)
    os.closerange(RESULT_FD + 1, max([*high, *outputs, stdin]) + 1)
    sys.stdin = sys.__stdin__ = stream(0, "r", "surrogateescape")
    sys.stdout = sys.__stdout__ = stream(1, "w", "surrogateescape")
    sys.stderr = sys.__stderr__ = stream(2, "w", "backslashreplace")
    _limit(setup["limits"], request["timeout_s"])
    _confine(bytes.fromhex(setup["program_filter"]))
    code = run_program(setup["source"], request, namespace)
    return finish(code)


def stream(fd: int, mode: Literal["r", "w"], errors: str) -> TextIO:
    """Return a text stream of a descriptor."""
    return open(fd, mode, encoding="utf-8", errors=errors, closefd=False)


def _limit(limits: Limits, timeout_s: float) -> None:
    wanted = {
        resource.RLIMIT_AS: limits["memory_bytes"],
        resource.RLIMIT_FSIZE: limits["output_bytes"],
        resource.RLIMIT_NOFILE: limits["open_files"],
        resource.RLIMIT_NPROC: limits["threads"],
        resource.RLIMIT_CPU: int(timeout_s) + 2,
        resource.RLIMIT_STACK: STACK_BYTES,
        resource.RLIMIT_CORE: 0,
    }
    for kind, value in wanted.items():
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


class FilterProgram(ctypes.Structure):
    """The C struct `sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_char_p))


def _confine(program_filter: bytes) -> None:
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    if program_filter:
        program = FilterProgram(len(program_filter) // 8, program_filter)
        prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(program))


def prctl(option: int, value: int, third: int = 0) -> None:
    """Call `prctl(2)`. Raises: OSError."""
    if LIBC.prctl(option, *map(ctypes.c_ulong, (value, third, 0, 0))) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option} failed")


def run_program(source: str, request: Request, names: dict[str, object]) -> int:
    """Run the program, and what is called in it; return its exit code."""
    call = request["call"]
    module = types.ModuleType("__main__" if call is None else "solution")
    module.__dict__.update(names, __file__=SOURCE_NAME)
    sys.modules["__main__"] = sys.modules[module.__name__] = module
    sys.argv = [SOURCE_NAME]
    try:
        exec(compile(source, SOURCE_NAME, "exec", dont_inherit=True), module.__dict__)
        if call is not None:
            _answer(_find(module.__dict__, call["name"])(*call["arguments"]))
        elif request["call_bare"] and (function := _bare_function(module.__dict__)):
            _answer(function(*_arguments(function)))
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        print(end.code, file=sys.stderr)
        return _PROGRAM_FAILED
    except BaseException as error:
        # The first frame is this file's.
        below = error.__traceback__ and error.__traceback__.tb_next
        sys.__excepthook__(type(error), error.with_traceback(below), below)
        return _PROGRAM_FAILED
    return 0


def _find(names: dict[str, Any], name: str) -> Callable[..., object]:
    solution = names.get("Solution")
    if isinstance(solution, type) and hasattr(solution, name):
        return getattr(solution(), name)
    if name not in names:
        raise NameError(f"name {name!r} is not defined")
    return names[name]


def _bare_function(names: dict[str, object]) -> Function | None:
    """Return the function to call in a program that only defines functions, neither reading nor
    writing; None for other programs."""
    _flush_all()
    if os.fstat(1).st_size or os.lseek(0, 0, os.SEEK_CUR) or threads_are_left():
        return None
    solution = names.get("Solution")
    if isinstance(solution, type):
        names = {}
        for name in vars(solution):
            if not name.startswith("_"):
                names[name] = getattr(solution(), name)
    kinds = (types.FunctionType, types.MethodType)
    functions: list[Function] = []
    for f in names.values():
        if isinstance(f, kinds) and f.__module__ == "__main__":
            functions.append(f)
    called = {name for f in functions for name in _names_used(f.__code__) if name != f.__name__}
    return next((f for f in reversed(functions) if f.__name__ not in called), None)


def threads_are_left() -> bool:
    """Return True if the program started threads that still run (and may yet read and write)."""
    return "threading" in sys.modules and sys.modules["threading"].active_count() > 1


def _names_used(code: types.CodeType) -> set[str]:
    inner: list[types.CodeType] = []
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner.append(constant)
    return set(code.co_names).union(*map(_names_used, inner))


def _arguments(function: Function) -> list[object]:
    """Parse standard input as arguments: a literal per line, or per word of a single line if the
    function takes several."""
    text = sys.stdin.read()
    code = function.__code__
    names = code.co_varnames[isinstance(function, types.MethodType) : code.co_argcount]
    pieces = text.rstrip("\n").splitlines() if text.strip() else []
    if len(pieces) == 1 and len(names) > 1:
        pieces = pieces[0].split()
    kinds = [function.__annotations__.get(name) for name in names] + [None] * len(pieces)
    return [_literal(piece.strip(), kind) for piece, kind in zip(pieces, kinds, strict=False)]


def _literal(text: str, kind: object) -> object:
    from ast import literal_eval

    if kind in (str, "str") and text[:1] not in ("'", '"'):
        return text
    for read in (json.loads, literal_eval):
        try:
            return read(text)
        except (ValueError, SyntaxError):
            continue
    return text


def _answer(value: object) -> None:
    data = json.dumps(plain(value)).encode()
    while data:
        data = data[os.write(RESULT_FD, data) :]


def plain(value: Any) -> object:
    """Convert to what JSON holds: numpy values to Python ones, tuples to lists. Raises: TypeError
    on anything else."""
    kind = type(value)
    if kind.__module__.partition(".")[0] == "numpy" and hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        items = {}
        for key, item in value.items():
            items[key if isinstance(key, str) else json.dumps(key)] = plain(item)
        return items
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a solution returns numbers, text, lists or dicts, not {kind.__name__}")


def finish(code: int) -> int:
    """Run what a program left for its end, flush its output, and return the exit code."""
    import atexit

    # Python runs both when an interpreter ends, but this process ends by `os._exit`, and nothing
    # public runs them. They can go when it ends in another way.
    try:
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()
        atexit._run_exitfuncs()
    except BaseException as error:
        sys.__excepthook__(type(error), error, error.__traceback__)
        code = code or _PROGRAM_FAILED
    flushed = _flush_all()
    return code or flushed


def _flush_all() -> int:
    """Flush the program's output; return the exit code that a failure to do so gives."""
    code = 0
    for stream in {sys.stdout, sys.__stdout__, sys.stderr, sys.__stderr__}:
        try:
            stream.flush()  # pyright: ignore[reportOptionalMemberAccess]
        except (ValueError, AttributeError):
            # The program closed it, which flushes too, or put something else in its place.
            continue
        except OSError:
            code = _PROGRAM_FAILED
    return code


if __name__ == "__main__":
    main()
