import json
from collections.abc import Iterator
from typing import Any

import pytest

from rl_core.envs import BaseTextEnv, make
from rl_core.errors import EnvError
from schemas.rows.ground_truth import accepted_kind_problems, reward_spec_problems

SUM = [{"input": "1 2\n", "output": "3\n"}, {"input": "10 -4\n", "output": "6\n"}]
SQUARE = [
    {"input": "5", "output": "25"},
    {"input": "-3", "output": "9"},
    {"input": "0", "output": "0"},
]
HELLO = [{"input": "", "output": "Hello\nworld\n"}]
HALF = [{"input": "1\n", "output": "0.5\n"}, {"input": "3\n", "output": "1.5\n"}]
COUNT = [{"input": "2\n", "output": "2\n"}, {"input": "3\n", "output": "3\n"}]


def functional(name: str, *pairs: tuple[str, str]) -> list[dict[str, Any]]:
    tests = [
        {"input": given, "output": expected, "testtype": "functional"} for given, expected in pairs
    ]
    return [{**test, "metadata": {"func_name": name}} for test in tests]


ADD = functional("add", ("[1, 2]\n3", "[4, 5]"), ("[]\n1", "[]"))
EVEN = functional("even", ("2", "true"), ("3", "false"))
NAME = functional("name", ('"ann"', '"Ann"'), ('"bob"', '"Bob"'))
ROOT = functional("root", ("2", "1.4142135623"), ("9", "3.0"))


def environment(tests: object, **config: Any) -> BaseTextEnv:
    return make("lcb", config, {"reward_spec": {"ground_truth": tests}})


def grade(tests: object, reply: str, **config: Any) -> dict[str, Any]:
    env = environment(tests, **config)
    try:
        return env.step(reply)  # type: ignore[return-value]
    finally:
        env.close()


@pytest.fixture(scope="module", autouse=True)
def _warm() -> Iterator[None]:
    keeper = environment(SUM)
    yield
    keeper.close()


def fenced(code: str) -> str:
    return f"```python\n{code}\n```"


READ = "a, b = map(int, input().split())\n"
EQ = "class E:\n    def __eq__(self, other): return True\n    def __hash__(self): return 0\n"


@pytest.mark.parametrize(
    ("tests", "code", "reward", "why"),
    [
        (SUM, f"{READ}print(a + b)", 1.0, "reads with input()"),
        (SUM, "import sys\nprint(sum(map(int, sys.stdin.read().split())))", 1.0, "reads sys.stdin whole"),
        (SUM, "import sys\nprint(sum(map(int, sys.stdin.buffer.read().split())))", 1.0, "reads sys.stdin.buffer"),
        (SUM, "import sys\nprint(sum(map(int, sys.stdin.readline().split())))", 1.0, "reads a line of sys.stdin"),
        (SUM, "print(sum(map(int, open(0).read().split())))", 1.0, "reads open(0)"),
        (SUM, "print(sum(map(int, open('/dev/stdin').read().split())))", 1.0, "reads /dev/stdin"),
        (SUM, "import os\nprint(sum(map(int, os.read(0, 99).split())))", 1.0, "reads the descriptor"),
        (SUM, f"def main():\n    {READ}    print(a + b)\nif __name__ == '__main__':\n    main()", 1.0, "a main guard"),
        (SUM, f"import sys\n{READ}sys.stdout.write(str(a + b))", 1.0, "writes to sys.stdout, without a line end"),
        (SUM, f"import os\n{READ}os.write(1, str(a + b).encode())", 1.0, "writes to the descriptor"),
        (SUM, f"import sys\n{READ}print(a + b)\nsys.exit()", 1.0, "leaves by sys.exit()"),
        (SUM, f"{READ}print(a + b)\nraise SystemExit", 1.0, "leaves by SystemExit"),
        (SUM, f"import numpy as np\n{READ}print(np.int64(a) + b)", 1.0, "numpy's integers"),
        (SUM, (
            f"import threading\ndef f():\n    {READ}    print(a + "
            "b)\nthreading.Thread(target=f).start()"
        ), 1.0,
         "a thread that is not joined"),
        (SUM, f"import atexit\n{READ}atexit.register(lambda: print(a + b))", 1.0, "prints at exit"),
        (SUM, f"import sys\n{READ}print('debug', file=sys.stderr)\nprint(a + b)", 1.0, "notes on standard error"),
        (SUM, f"{READ}print(' ', a + b, ' ')\nprint()", 1.0, "white space around the answer"),
        (SUM, f"{READ}heappush(h := [], a + b)\nprint(heappop(h))", 1.0, "heapq's functions without an import"),
        (HELLO, "print('Hello\\r\\nworld\\r')", 1.0, "CRLF line ends in the output"),
        (HALF, "print(int(input()) / 2)", 1.0, "decimals"),
        (HALF, "print(f'{int(input()) / 2:.6f}')", 1.0, "decimals with more zeros"),
        (COUNT, "from sortedcontainers import SortedList\nprint(SortedList([int(input())])[0])", 1.0, "sorted lists"),
        (SQUARE, "def square(n):\n    return n * n", 1.0, "a bare function, as in the seed's sample"),
        (SQUARE, "def helper(n): return n * n\ndef square(n: int) -> int:\n    return helper(n)", 1.0, "with a helper"),
        (SQUARE, "class Solution:\n    def square(self, n):\n        return n * n", 1.0, "a bare method"),
        (SQUARE, "print(int(input()) ** 2)", 1.0, "the same as a program"),
        (SQUARE, "import numpy as np\ndef square(n):\n    return np.int64(n) ** 2", 1.0, "a bare function with numpy"),
        (ADD, "def add(xs, y):\n    return [x + y for x in xs]", 1.0, "a function"),
        (ADD, (
            "class Solution:\n    def add(self, xs: List[int], y: int):\n        return [x + y "
            "for x in xs]"
        ),
         1.0, "a method, with a type that nobody imported"),
        (ADD, "import numpy as np\ndef add(xs, y):\n    return np.array(xs, int) + y", 1.0, "arrays are lists"),
        (ADD, "def add(xs, y):\n    return tuple(x + y for x in xs)", 1.0, "a tuple is a list"),
        (ADD, "def add(xs, y):\n    print('debug')\n    return [x + y for x in xs]", 1.0, "a function may print"),
        (EVEN, "import numpy as np\ndef even(n):\n    return np.bool_(n % 2 == 0)", 1.0, "numpy's truth"),
        (EVEN, "def even(n):\n    return 1 - n % 2", 1.0, "1 is True in Python"),
        (NAME, "def name(s):\n    return s.title()", 1.0, "text"),
        (ROOT, "def root(x):\n    return x ** 0.5", 1.0, "floats up to rounding"),
        (SUM, f"{READ}print(a - b)", 0.0, "wrong"),
        (SUM, f"{READ}print(a + b + 1e-9)", 0.0, "a whole number must be whole"),
        (SUM, "print(3)", 0.0, "right for the first test alone"),
        (SUM, "pass", 0.0, "prints nothing"),
        (SUM, f"{READ}print(a + b)\n1 / 0", 0.0, "fails after the right output"),
        (SUM, f"{READ}print(a + b)\nraise SystemExit(1)", 0.0, "exits with an error"),
        (SUM, f"{READ}print('answer:', a + b)", 0.0, "words around the answer"),
        (SUM, f"{READ}print(a + b, a + b + 1)", 0.0, "two candidates on a line"),
        (SUM, f"{READ}for i in range(-9, 9): print(i)", 0.0, "all candidates on lines"),
        (SUM, "import os\nos._exit(0)", 0.0, "leaves at once with success"),
        (SUM, "while True: pass", 0.0, "never ends"),
        (HELLO, "print('Hello world')", 0.0, "one line for two"),
        (HELLO, "print('hello\\nworld')", 0.0, "case counts"),
        (SQUARE, "def square(n):\n    print(n * n)", 0.0, "prints where it should return"),
        (SQUARE, f"{EQ}def square(n):\n    return E()", 0.0, "an object that is equal to everything"),
        (ADD, f"{EQ}def add(xs, y):\n    return E()", 0.0, "the same in a functional test"),
        (ADD, "class L(list):\n    __eq__ = lambda a, b: True\ndef add(xs, y):\n    return L()", 0.0, "a lying list"),
        (NAME, "class S(str):\n    __eq__ = lambda a, b: True\ndef name(s):\n    return S('x')", 0.0, "text that lies"),
        (EVEN, "class I(int):\n    __eq__ = lambda a, b: True\ndef even(n):\n    return I(7)", 0.0, "a lying number"),
        (ROOT, "def root(x):\n    return float('nan')", 0.0, "not a number"),
        (ROOT, "def root(x):\n    return float('inf')", 0.0, "infinity"),
        (ROOT, "def root(x):\n    return 10 ** 400", 0.0, "a whole number that no float holds"),
        (ADD, "def add(xs, y):\n    return None", 0.0, "nothing returned"),
        (ADD, "def add(xs, y):\n    yield from (x + y for x in xs)", 0.0, "a generator is no list"),
        (ADD, "def plus(xs, y):\n    return [x + y for x in xs]", 0.0, "another name"),
        (EVEN, "def even(n):\n    return 'true' if n % 2 == 0 else 'false'", 0.0, "text is no truth value"),
        (EVEN, "def even(n):\n    return True", 0.0, "always the same"),
        (NAME, "def name(s):\n    return s", 0.0, "case counts in text"),
        (ADD, "def add(xs, y):\n    return [[x + y for x in xs]]", 0.0, "one bracket too many"),
    ],
)  # fmt: skip
def test_programs(tests: list[dict[str, Any]], code: str, reward: float, why: str) -> None:
    output = grade(tests, fenced(code), timeout_s=0.7 if "while" in code else 20)
    assert output["reward"] == reward, (why, output["metadata"])
    assert output["done"] and output["observations"] == []


GOOD = f"{READ}print(a + b)"
BAD = "print('no')"


@pytest.mark.parametrize(
    ("reply", "reward", "why"),
    [
        (f"Here:\n```python\n{GOOD}\n```\nDone.", 1.0, "words around"),
        (f"```py\n{GOOD}\n```", 1.0, "a short tag"),
        (f"```Python3\n{GOOD}\n```", 1.0, "a tag with a version, upper case"),
        (f"```\n{GOOD}\n```", 1.0, "no tag"),
        (f"~~~python\n{GOOD}\n~~~", 1.0, "tildes"),
        (f"````python\n{GOOD}\n````", 1.0, "four backticks"),
        ("```python\r\n" + GOOD.replace("\n", "\r\n") + "\r\n```\r\n", 1.0, "CRLF"),
        (f"   ```python\n{GOOD}\n   ```", 1.0, "an indented fence"),
        (f"```python\n{BAD}\n```\nBetter:\n```python\n{GOOD}\n```", 1.0, "the last block"),
        (f"```python\n{GOOD}\n```\nIt prints:\n```text\n3\n```", 1.0, "output in a block of its own tag"),
        (f"<think>```python\n{BAD}\n```</think>```python\n{GOOD}\n```", 1.0, "a draft in the thinking"),
        (f"```python\n{GOOD}", 1.0, "a fence that is never closed reaches to the end"),
        (f"```python\nx = '''\n``` \n'''\n{GOOD}\n```", 0.0, "a fence line inside the code ends it, as in markdown"),
        (f"```python\n{GOOD}\n```\n```python\n{BAD}\n```", 0.0, "the last block is wrong"),
        (f"<think>\n```python\n{GOOD}\n```\n</think>\nDone.", 0.0, "only in the thinking"),
        (GOOD, 0.0, "no fence"),
        ("```python\n```", 0.0, "an empty block"),
        ("```python\n   \n```", 0.0, "a blank block"),
        (f"```javascript\n{GOOD}\n```", 0.0, "another language"),
        ("", 0.0, "nothing was said"),
    ],
)  # fmt: skip
def test_where_the_program_is_read(reply: str, reward: float, why: str) -> None:
    assert grade(SUM, reply)["reward"] == reward, why


@pytest.mark.parametrize(
    "tests",
    [
        json.dumps(SUM), [{**test, "testtype": None, "metadata": None} for test in SUM],
        [{**test, "testtype": "stdin", "metadata": {"func_name": None}} for test in SUM],
        [{"input": ["1 2"], "output": [3]}],
    ],
)  # fmt: skip
def test_tests_in_every_shape(tests: object) -> None:
    code = (
        GOOD
        if not (isinstance(tests, list) and isinstance(tests[0]["input"], list))
        else "input(); print('[3]')"
    )
    assert grade(tests, fenced(code))["reward"] == 1.0


@pytest.mark.parametrize("metadata", [{"func_name": "add"}, '{"func_name": "add"}'])
def test_a_function_s_name_in_every_shape(metadata: object) -> None:
    tests = [{"input": "[1]\n2", "output": "[3]", "testtype": "functional", "metadata": metadata}]
    assert grade(tests, fenced("def add(xs, y): return [x + y for x in xs]"))["reward"] == 1.0


@pytest.mark.parametrize(
    ("tests", "message"),
    [
        ([], "ground_truth"), ("[]", "ground_truth"), ("Paris", "ground_truth"),
        (None, "ground_truth"), (5, "ground_truth"),
        ([{"input": "1"}], r"ground_truth\[0\] must have input and output"),
        ([*SUM, {"output": "1"}], r"ground_truth\[2\] must have input and output"),
        ([{"input": "1", "output": "1", "testtype": "call"}], "testtype must be stdin or functional"),
        ([{"input": "1", "output": "1", "testtype": "functional"}], "needs metadata.func_name"),
        ([{"input": "1", "output": "1", "metadata": "{"}], "metadata is not JSON"),
        ([{"input": "1", "output": ""}, {"input": "2", "output": "\n"}], "a program that prints nothing would pass"),
    ],
)  # fmt: skip
def test_a_row_whose_tests_cannot_be_run_is_refused(tests: object, message: str) -> None:
    with pytest.raises(EnvError, match=message):
        environment(tests)


def test_metadata_tells_how_far_the_program_came_and_why_it_failed() -> None:
    output = grade(SUM, fenced("print(3)"))
    assert output["metadata"] == {"passed": 1, "tests": 2, "failure": "wrong answer"}
    failed = grade(SUM, fenced("1 / 0"))["metadata"]
    assert failed["failure"] == "failed" and failed["passed"] == 0
    assert (
        'File "solution.py", line 1' in failed["stderr"] and "ZeroDivisionError" in failed["stderr"]
    )
    assert grade(SUM, "no")["metadata"]["failure"] == "no code block"


def test_all_tests_together_have_a_deadline() -> None:
    tests = [{"input": str(i), "output": str(i)} for i in range(50)]
    code = "import time\ntime.sleep(0.2)\nprint(input())"
    metadata = grade(tests, fenced(code), timeout_s=5.0, total_timeout_s=1.0)["metadata"]
    assert metadata["failure"] in ("total timeout", "timeout") and metadata["passed"] < 50


def test_metrics_of_a_conversation() -> None:
    env = environment(SUM)
    env.step(fenced("print(3)"))
    assert env.get_metrics() == {"correct": 0.0, "passed": 0.5, "has_code": 1.0, "timeout": 0.0}
    env.close()


def test_tests_of_a_parquet_row_are_arrays_of_dicts_with_gaps() -> None:
    import numpy as np

    tests = np.array([{**test, "testtype": None, "metadata": None} for test in SUM], dtype=object)
    assert grade(tests, fenced(GOOD))["reward"] == 1.0


DOUBLE = "def double(x):\n    return 2 * x"
READ = "a, b = input(), input()\nprint(a)\nprint(int(a) + int(b))"


@pytest.mark.parametrize("as_text", [False, True])
@pytest.mark.parametrize(
    ("tests", "code"),
    [
        ({"inputs": ["1\n2\n", "3\n4\n"], "outputs": ["1\n3\n", "3\n7\n"]}, READ),
        ({"inputs": [["1", "2"]], "outputs": [["1", "3"]], "fn_name": None}, READ),
        ({"inputs": [[2], [5]], "outputs": [4, 10], "fn_name": "double"}, DOUBLE),
        ({"inputs": [[2], [[1]]], "outputs": [[4], [1, 1]], "fn_name": "double"}, DOUBLE),
    ],
)
def test_tests_of_apps_prime_and_eurus_are_run(
    tests: dict[str, Any], code: str, as_text: bool
) -> None:
    given = json.dumps(tests) if as_text else tests
    reply = f"```python\n{code}\n```"
    assert grade(given, reply)["reward"] == 1.0
    assert grade(given, reply.replace("2 * x", "3 * x").replace("+ int(b)", "- 9"))["reward"] == 0.0
    assert reward_spec_problems({"ground_truth": given}) == []
    allowed = {"lcb": frozenset({"test_cases"})}
    assert accepted_kind_problems("lcb", {"ground_truth": given}, allowed) == []


def test_inputs_without_their_outputs_are_no_tests() -> None:
    problems = reward_spec_problems({"ground_truth": {"inputs": ["1"], "outputs": []}})
    assert [problem.reason for problem in problems] == ["not a ground truth"]
