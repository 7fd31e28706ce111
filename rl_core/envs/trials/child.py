"""Main program of a process in which environments are built: `child.py <progress>` answers requests
until its input ends.

A request and an answer are pickles; the first request holds the paths of modules and the settings.
The position of the row in hand stands in the shared file `<progress>`, so that whoever finds the
process dead knows which row it was.
"""

import mmap
import os
import pickle
import struct
import sys

POSITION = struct.Struct("q")
ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))


def main() -> None:
    """Answer requests until standard input ends."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # What an environment prints must not end up among the answers.
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    sys.path[:] = [ROOT, *pickle.load(requests)]
    # Its import makes this project's packages come before modules of the same names.
    from rl_core.envs.trials.building import Builder

    sys.path.pop(0)

    progress = mmap.mmap(int(sys.argv[1]), POSITION.size)
    builder = Builder(pickle.load(requests), lambda index: POSITION.pack_into(progress, 0, index))
    while True:
        try:
            trials = pickle.load(requests)
        except EOFError:
            return
        pickle.dump(builder(trials), answers)
        answers.flush()


if __name__ == "__main__":
    main()
