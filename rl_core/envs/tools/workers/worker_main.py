"""Main program of a worker process: `worker_main.py <file>` answers requests with that file's
`answer`.

Standard library only.

A request is 8 bytes of length and marshalled `(timeout_s, payload)`; the answer has the same form.
A request that exceeds its time ends the process from within, by the kernel's timer, whatever C code
it is stuck in.
"""

import marshal
import os
import signal
import struct
import sys
import types
from importlib.machinery import SourceFileLoader

LENGTH = struct.Struct(">Q")


def main():
    """Answer requests until standard input ends."""
    loader = SourceFileLoader("worker", sys.argv[1])
    module = types.ModuleType(loader.name)
    sys.modules[loader.name] = module
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # What a library prints must not end up among the answers.
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    loader.exec_module(module)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    while head := requests.read(LENGTH.size):
        timeout_s, payload = marshal.loads(requests.read(*LENGTH.unpack(head)))
        signal.setitimer(signal.ITIMER_REAL, timeout_s)
        data = marshal.dumps(module.answer(payload))
        signal.setitimer(signal.ITIMER_REAL, 0)
        answers.write(LENGTH.pack(len(data)) + data)
        answers.flush()


if __name__ == "__main__":
    main()
