"""System calls denied to sandboxed code, as seccomp filter programs (classic BPF,
`linux/seccomp.h`).

Two filters stack. `sandbox_filter` applies to everything in a sandbox, its trusted worker included.
`program_filter` is added by the worker to the process of each test: no new processes, no `exec`, no
memory outside the process's limits. Threads stay possible, since deep recursion in a thread of its
own is common in right answers. Both are deny-lists answering EPERM: an allow-list would break right
answers with every new libc.
"""

from __future__ import annotations

import platform
import struct
from collections.abc import Iterable, Mapping

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _ARCH_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_EPERM, _ENOSYS = 1, 38
_CLONE_THREAD = 0x10000
_X32_BIT = 0x40000000
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# name: (x86_64, aarch64); None where the architecture has no such call.
_ANYWHERE: Mapping[str, tuple[int | None, int | None]] = {
    "socket": (41, 198), "ptrace": (101, 117), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "pidfd_getfd": (438, 438), "kcmp": (312, 272),
    "process_madvise": (440, 440), "mount": (165, 40), "umount2": (166, 39),
    "pivot_root": (155, 41), "chroot": (161, 51), "unshare": (272, 97), "setns": (308, 268),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsmount": (432, 432),
    "mount_setattr": (442, 442), "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "bpf": (321, 280),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225),
    "acct": (163, 89), "quotactl": (179, 60), "syslog": (103, 116), "settimeofday": (164, 170),
    "clock_settime": (227, 112), "sethostname": (170, 161), "iopl": (172, None),
    "ioperm": (173, None), "personality": (135, 92), "fanotify_init": (300, 262),
}  # fmt: skip
_IN_PROGRAMS: Mapping[str, tuple[int | None, int | None]] = {
    "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281),
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "shmat": (30, 196),
    "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180), "sendmsg": (46, 211),
    "sendmmsg": (307, 269), "setpriority": (141, 140), "ioprio_set": (251, 30),
    "migrate_pages": (256, 238), "move_pages": (279, 239),
}  # fmt: skip
_OF_ANOTHER_PROCESS: Mapping[str, tuple[int, int]] = {
    "prlimit64": (302, 261), "sched_setparam": (142, 118), "sched_setscheduler": (144, 119),
    "sched_setaffinity": (203, 122), "sched_setattr": (314, 274),
}  # fmt: skip
"""Calls whose first argument, a process id, has to be 0, the caller itself: the worker of the
sandbox has the same user, and would otherwise get its limits from the program."""
_FCNTL = (72, 25)
_LOCKS = (6, 7, 37, 38)
"""Commands of `fcntl` that lock a part of a file: each lock takes the kernel's memory, and no limit
counts them."""
_CLONE = (56, 220)
_CLONE3 = (435, 435)


def sandbox_filter(machine: str | None = None) -> bytes | None:
    """Return the filter of a whole sandbox, or None on an architecture whose system call numbers
    are not known here.

    Args: machine: name of the architecture as in `platform.machine()`.
    """
    return _build(machine or platform.machine(), _ANYWHERE.values(), threads_only=False)


def program_filter(machine: str | None = None) -> bytes | None:
    """Return the filter of one test's process, which includes `sandbox_filter`; None if that is
    None."""
    denied = [*_ANYWHERE.values(), *_IN_PROGRAMS.values()]
    return _build(machine or platform.machine(), denied, threads_only=True)


def _build(
    machine: str, denied: Iterable[tuple[int | None, int | None]], *, threads_only: bool
) -> bytes | None:
    if machine not in _AUDIT_ARCH:
        return None
    column = list(_AUDIT_ARCH).index(machine)
    code = [
        _step(_LOAD, _ARCH_AT),
        _step(_JUMP_EQUAL, _AUDIT_ARCH[machine], 1, 0),
        # Another architecture's numbers mean other calls: a 32-bit entry would slip past every line
        # below.
        _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER_AT),
    ]
    if machine == "x86_64":
        code += [_step(_JUMP_AT_LEAST, _X32_BIT, 0, 1), _step(_RETURN, _KILL)]
    for numbers in denied:
        number = numbers[column]
        if number is not None:
            code += [_step(_JUMP_EQUAL, number, 0, 1), _step(_RETURN, _ERRNO | _EPERM)]
    if threads_only:
        for numbers in _OF_ANOTHER_PROCESS.values():
            code += _denied_by_argument(numbers[column], 0, (0,), others=True)
        code += _denied_by_argument(_FCNTL[column], 1, _LOCKS, others=False)
        code += _clone_for_threads_only(column)
    return b"".join([*code, _step(_RETURN, _ALLOW)])


def _denied_by_argument(
    number: int, argument: int, values: tuple[int, ...], *, others: bool
) -> list[bytes]:
    """Deny a call for some values of one of its arguments, an `int`, or for all others; other calls
    go on with their number loaded."""
    tests = [
        _step(_JUMP_EQUAL, value, len(values) - place, 0) for place, value in enumerate(values)
    ]
    verdicts = (_ALLOW, _ERRNO | _EPERM) if others else (_ERRNO | _EPERM, _ALLOW)
    return [
        _step(_JUMP_EQUAL, number, 0, len(tests) + 3),
        _step(_LOAD, _FIRST_ARGUMENT_AT + 8 * argument),
        *tests,
        _step(_RETURN, verdicts[1]),
        _step(_RETURN, verdicts[0]),
    ]


def _clone_for_threads_only(column: int) -> list[bytes]:
    return [
        # clone3 hides its flags in memory, which a filter cannot read; at ENOSYS libc falls back to
        # clone.
        _step(_JUMP_EQUAL, _CLONE3[column], 0, 1),
        _step(_RETURN, _ERRNO | _ENOSYS),
        _step(_JUMP_EQUAL, _CLONE[column], 0, 3),
        _step(_LOAD, _FIRST_ARGUMENT_AT),
        _step(_JUMP_ANY_BIT, _CLONE_THREAD, 1, 0),
        _step(_RETURN, _ERRNO | _EPERM),
    ]


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
