"""Every system call that a sandbox or a program may not make, made by its number: the filter itself
answers.

The calls are listed here again, since a list that is read from the filter would miss what left the
filter.
"""

import errno
import platform
import subprocess
import sys

import pytest

from rl_core.envs.tools import seccomp

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="the numbers are those of x86_64"
)

ANYWHERE = {
    "socket": 41, "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "pidfd_getfd": 438, "kcmp": 312,
    "process_madvise": 440, "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "unshare": 272,
    "setns": 308, "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsmount": 432, "mount_setattr": 442,
    "open_by_handle_at": 304, "name_to_handle_at": 303, "add_key": 248, "request_key": 249, "keyctl": 250, "bpf": 321,
    "perf_event_open": 298, "userfaultfd": 323, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427,
    "kexec_load": 246, "kexec_file_load": 320, "init_module": 175, "finit_module": 313, "delete_module": 176,
    "reboot": 169, "swapon": 167, "swapoff": 168, "acct": 163, "quotactl": 179, "syslog": 103, "settimeofday": 164,
    "clock_settime": 227, "sethostname": 170, "iopl": 172, "ioperm": 173, "personality": 135, "fanotify_init": 300,
}  # fmt: skip
IN_PROGRAMS = {
    "fork": 57, "vfork": 58, "execve": 59, "execveat": 322, "memfd_create": 319, "memfd_secret": 447, "shmget": 29,
    "shmat": 30, "msgget": 68, "semget": 64, "mq_open": 240, "sendmsg": 46, "sendmmsg": 307, "setpriority": 141,
    "ioprio_set": 251, "migrate_pages": 256, "move_pages": 279,
}  # fmt: skip
OF_ANOTHER_PROCESS = {
    "prlimit64": 302, "sched_setparam": 142, "sched_setscheduler": 144, "sched_setaffinity": 203, "sched_setattr": 314,
}  # fmt: skip
OURS = errno.EBADE
"""In place of EPERM, which the kernel also answers to a process without privileges."""

CALLS = """
import ctypes, errno, os, sys
from rl_core.envs.tools import seccomp
from rl_core.envs.tools.workers import sandbox_worker
assert seccomp._EPERM == errno.EPERM
seccomp._EPERM = int(sys.argv[2])
filter = getattr(seccomp, sys.argv[1])()
libc = ctypes.CDLL(None, use_errno=True)
sandbox_worker._confine(filter)
for number in map(int, sys.argv[3:]):
    # No argument is right, so that a call the filter lets through does nothing.
    answer = libc.syscall(number, *[ctypes.c_long(-1)] * 6)
    if answer == 0 and number in (57, 58):
        os._exit(0)
    print(ctypes.get_errno() if answer == -1 else 0)
"""


def answers(name: str, calls: dict[str, int]) -> dict[str, int]:
    """Call -> errno, in a process that holds the filter of this name."""
    command = [sys.executable, "-c", CALLS, name, str(OURS), *map(str, calls.values())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(zip(calls, map(int, done.stdout.split()), strict=True))


def test_the_filter_of_a_program_answers_every_forbidden_call() -> None:
    calls = ANYWHERE | IN_PROGRAMS | OF_ANOTHER_PROCESS
    assert answers("program_filter", calls) == dict.fromkeys(calls, OURS)


def test_the_filter_of_a_sandbox_answers_what_is_forbidden_anywhere_and_lets_its_worker_start_programs() -> (
    None
):
    assert answers("sandbox_filter", ANYWHERE) == dict.fromkeys(ANYWHERE, OURS)
    told = {name: number for name, number in IN_PROGRAMS.items() if name not in ("fork", "vfork")}
    assert OURS not in answers("sandbox_filter", told).values()


def test_a_call_that_right_answers_need_is_let_through() -> None:
    assert answers("program_filter", {"getpid": 39, "close": 3}) == {
        "getpid": 0,
        "close": errno.EBADF,
    }


def test_what_the_filters_forbid_is_listed_here() -> None:
    assert set(seccomp._ANYWHERE) == set(ANYWHERE)
    assert set(seccomp._IN_PROGRAMS) == set(IN_PROGRAMS)
    assert set(seccomp._OF_ANOTHER_PROCESS) == set(OF_ANOTHER_PROCESS)
