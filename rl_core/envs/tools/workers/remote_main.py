"""Program on a server that isolates by itself: runs one test in its own process, with the functions
of `sandbox_worker.py`, which lies beside it there. Standard library only."""

import json
import os
import sys

JOB, RESULT = "rl_train_job.json", "rl_train_result.json"
"""File with `source`, `stdin`, `call` and `call_bare`, and the file for what a call returns."""


def main():
    """Run the test, write what it printed, and end with its exit code."""
    import sandbox_worker as worker  # pyright: ignore[reportMissingImports]

    with open(JOB, encoding="utf-8") as file:
        job = json.load(file)
    stdin, stdout = os.memfd_create("stdin"), os.memfd_create("stdout")
    with open(stdin, "wb", closefd=False) as file:
        file.write(job["stdin"].encode("utf-8", "surrogatepass"))
    os.lseek(stdin, 0, os.SEEK_SET)
    result = os.open(RESULT, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    # Copies: a descriptor that is replaced may be one that is still needed.
    printed, stdin, stdout, result = (os.dup(fd) for fd in (1, stdin, stdout, result))
    for target, fd in ((0, stdin), (1, stdout), (worker.RESULT_FD, result)):
        os.dup2(fd, target)
    sys.stdin = sys.__stdin__ = worker.stream(0, "r", "surrogateescape")
    sys.stdout = sys.__stdout__ = worker.stream(1, "w", "surrogateescape")
    code = worker.finish(worker.run_program(job["source"], job, worker.prelude()))
    said = os.pread(1, os.fstat(1).st_size, 0)
    while said:
        said = said[os.write(printed, said) :]
    os._exit(code)


if __name__ == "__main__":
    main()
