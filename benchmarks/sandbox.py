"""`lcb` against one process per test: 200 programs with 10 tests each, on two threads.

Three ways to run the same programs on the same inputs, in one run, interleaved in rounds so that a
busy machine is busy for all of them:

* the environment `lcb`, whole: reply in, reward out, every program in a sandbox of its own;
* one interpreter per test, without any sandbox;
* one sandbox per test, on a sample (it is slow).

    python -m benchmarks.sandbox [--programs 200] [--tests 10] [--threads 2]
"""

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from rl_core.envs import make
from rl_core.envs.tools.grading import same_output
from rl_core.envs.tools.sandbox import SandboxPool, SandboxSettings

ROUNDS = 5
SAMPLE = 10
"""Of the programs, one in so many is run with one sandbox per test."""

PROGRAMS = (
    "n = int(input())\nprint(sum(int(x) for x in input().split()))",
    "import sys\ndata = sys.stdin.read().split()\nprint(sum(map(int, data[1:])))",
    "from collections import Counter\ninput()\nc = Counter(map(int, input().split()))\n"
    "print(sum(k * v for k, v in c.items()))",
    "import heapq\ninput()\nh = list(map(int, input().split()))\nheapq.heapify(h)\nt = 0\n"
    "while h: t += heapq.heappop(h)\nprint(t)",
)


def source_of(index: int) -> str:
    """The program with this number; every one is its own text."""
    return f"# program {index}\n{PROGRAMS[index % len(PROGRAMS)]}"


def tests_of(index: int, num_tests: int) -> list[dict[str, str]]:
    """Its tests: sums of fifty numbers."""
    cases = []
    for test in range(num_tests):
        numbers = [(index * 31 + test * 17 + i * 7) % 1000 for i in range(50)]
        cases.append(
            {"input": f"50\n{' '.join(map(str, numbers))}\n", "output": f"{sum(numbers)}\n"}
        )
    return cases


def by_environment(index: int, tests: list[dict[str, str]]) -> bool:
    """The environment `lcb`."""
    env = make("lcb", {}, {"reward_spec": {"ground_truth": tests}})
    try:
        return env.step(f"```python\n{source_of(index)}\n```")["reward"] == 1.0  # type: ignore[index]
    finally:
        env.close()


def by_processes(index: int, tests: list[dict[str, str]]) -> bool:
    """One interpreter per test."""
    return all(
        same_output(
            subprocess.run(
                [sys.executable, "-I", "-c", source_of(index)],
                input=test["input"],
                capture_output=True,
                text=True,
            ).stdout,
            test["output"],
        )
        for test in tests
    )


def by_sandboxes(pool: SandboxPool) -> Callable[[int, list[dict[str, str]]], bool]:
    """One sandbox per test."""

    def play(index: int, tests: list[dict[str, str]]) -> bool:
        for test in tests:
            with pool.sandbox(source_of(index)) as sandbox:
                stdout = sandbox.run(timeout_s=20.0, stdin=test["input"]).stdout.decode()
            if not same_output(stdout, test["output"]):
                return False
        return True

    return play


class Clock:
    """Wall time, and CPU time of this process and its children."""

    def __init__(self) -> None:
        self.wall_s = self.cpu_s = 0.0
        self.num_programs = 0

    @contextmanager
    def running(self, num_programs: int) -> Iterator[None]:
        """Count what happens inside."""
        wall, cpu = time.perf_counter(), _cpu_s()
        yield
        self.wall_s += time.perf_counter() - wall
        self.cpu_s += _cpu_s() - cpu
        self.num_programs += num_programs

    def line(self, name: str, num_tests: int, beside: "Clock") -> str:
        """One row of the table."""
        per_program = 1000 * self.wall_s / self.num_programs
        ratio = per_program / (1000 * beside.wall_s / beside.num_programs)
        cpu_ms = 1000 * self.cpu_s / self.num_programs
        return (
            f"{name:<32}{self.num_programs:>9}{per_program:>14.1f}{per_program / num_tests:>13.2f}"
            f"{cpu_ms:>13.1f}{ratio:>9.2f}x"
        )


def _cpu_s() -> float:
    usages = (
        resource.getrusage(resource.RUSAGE_SELF),
        resource.getrusage(resource.RUSAGE_CHILDREN),
    )
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def main() -> None:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--tests", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    environment, processes, sandboxes = Clock(), Clock(), Clock()
    pool = SandboxPool(SandboxSettings())
    keeper = make("lcb", {}, {"reward_spec": {"ground_truth": tests_of(0, 1)}})
    indices = list(range(arguments.programs))
    with ThreadPoolExecutor(arguments.threads) as executor:

        def play(
            how: Callable[[int, list[dict[str, str]]], bool], part: list[int], clock: Clock
        ) -> None:
            with clock.running(len(part)):
                verdicts = list(
                    executor.map(lambda index: how(index, tests_of(index, arguments.tests)), part)
                )
            assert all(verdicts), "every program here is right"

        for number in range(ROUNDS):
            part = indices[number::ROUNDS]
            play(by_environment, part, environment)
            play(by_processes, part, processes)
            play(by_sandboxes(pool), part[::SAMPLE], sandboxes)
    keeper.close()
    pool.close()
    print(
        f"{arguments.programs} programs x {arguments.tests} tests, {arguments.threads} threads, "
        f"{ROUNDS} rounds"
    )
    print(f"{'':<32}{'programs':>9}{'ms/program':>14}{'ms/test':>13}{'cpu ms':>13}{'against':>10}")
    print(environment.line("lcb (one sandbox per program)", arguments.tests, environment))
    print(processes.line("one process per test, no sandbox", arguments.tests, environment))
    print(sandboxes.line("one sandbox per test", arguments.tests, environment))


if __name__ == "__main__":
    main()
