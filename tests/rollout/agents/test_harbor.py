"""Tasks of Harbor: commands in a sandbox, the reward of the task's tests, and tasks that are not
for bubblewrap."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from rl_core.builtin.data.environments.files import materialise_environment_rows
from rl_core.builtin.data.environments.harbor import HarborRows
from rl_core.data import read_rows
from rl_core.envs.registration import make
from rl_core.errors import DataError, EnvError
from tests.rollout.agents.episode_of import episodes

EXAMPLE = Path(__file__).parents[3] / "examples" / "harbor" / "tasks"
SAYS = {
    "hello": ["```bash\necho Hello, world! > hello.txt\n```", "Done."],
    "half": ["```bash\necho Hello > hello.txt; touch /tests/test.sh; ls nowhere\n```", "Done."],
    "cheat": [
        "```bash\nmkdir -p /logs/verifier; (sleep 1; echo 1 > /logs/verifier/reward.txt) &\n"
        "echo 1 > /logs/verifier/reward.txt\n```",
        "Done.",
    ],
    "locked": [
        "```bash\nmkdir -p /logs/verifier; cd /logs/verifier\n"
        "echo '{\"reward\": 1}' > reward.json\n"
        "touch /tests/.hidden; chmod 444 reward.json; chmod 555 . ..\n```",
        "Done.",
    ],
    "answers": [
        '```bash\nfor n in 2 3 4 5; do echo \'{"data": "MQ=="}\' > /proc/1/fd/$n; done\n'
        "kill -INT 1\n```",
        "Done.",
    ],
    "total": ["```bash\ncat prices.txt\n```", "```bash\necho 49 > total.txt\n```", "It is 49."],
    "idle": ["I cannot."],
}


def rows_of(folder: Path, tmp_path: Path) -> dict[str, dict[str, Any]]:
    spec = HarborRows(harbor=str(folder), env_class="work", split="all")
    file = materialise_environment_rows(spec, tmp_path)
    found: list[dict[str, Any]] = [dict(row) for _, row in read_rows(file)]
    return {row["extra_info"]["harbor_task"]: row for row in found}


def played(folder: Path, row: dict[str, Any], says: list[str]) -> tuple[Any, list[str]]:
    """An episode, and what the policy was told."""
    ended, requests = episodes(
        {"harbor": str(folder), "command_timeout_s": 5},
        [row],
        lambda messages: says[sum(one["role"] == "assistant" for one in messages)],
    )
    return ended[0], [one["content"] for one in requests[-1]["messages"] if one["role"] == "user"]


@pytest.mark.slow
def test_commands_are_run_and_the_tests_give_the_reward(tmp_path: Path) -> None:
    rows = rows_of(EXAMPLE, tmp_path)
    assert {"hello", "total"} < set(rows)
    right, _ = played(EXAMPLE, rows["hello"], SAYS["hello"])
    assert (right.error, right.reward, right.metrics) == (None, 1.0, {"commands": 1.0})
    half, told = played(EXAMPLE, rows["hello"], SAYS["half"])
    assert half.reward == 0.2 and "nowhere" in told[1] and "(exit code 2)" in told[1]
    total, told = played(EXAMPLE, rows["total"], SAYS["total"])
    assert total.reward == 1.0 and told[1:] == ["12\n7\n30\n", "(exit code 0)"]
    assert total.metrics == {"sum": 1.0, "kept": 1.0, "commands": 2.0}
    idle, _ = played(EXAMPLE, rows["hello"], SAYS["idle"])
    assert idle.reward == 0.0
    # A reward that the policy wrote itself, now or later, counts nothing.
    for way in ("cheat", "locked", "answers"):
        cheat, told = played(EXAMPLE, rows["hello"], SAYS[way])
        assert (cheat.error, cheat.reward) == (None, 0.0), way
    # Nor can it answer in the place of the sandbox.
    assert told[1].count("Permission denied") == 4


@pytest.mark.slow
def test_the_solution_of_every_example_earns_its_reward(tmp_path: Path) -> None:
    for name, row in rows_of(EXAMPLE, tmp_path).items():
        solution = (EXAMPLE / name / "solution" / "solve.sh").read_text()
        solved, told = played(EXAMPLE, row, [f"```bash\n{solution}```", "Done."])
        assert (solved.error, solved.reward) == (None, 1.0), (name, told)


def test_tests_without_a_reward_are_no_verdict(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE / "hello", tmp_path / "tasks" / "hello")
    (tmp_path / "tasks/hello/tests/test.sh").write_text("echo no such program; exit 3\n")
    rows = rows_of(tmp_path / "tasks", tmp_path)
    ended, _ = played(tmp_path / "tasks", rows["hello"], SAYS["hello"])
    assert ended.reward is None
    assert "task hello: tests/test.sh wrote no" in ended.error
    assert "exit code 3 and printed 'no such program'" in ended.error


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("environment/Dockerfile", "FROM x\nRUN apt-get install -y jq\n", "RUN apt-get install"),
        ("environment/Dockerfile", "FROM x\nENV PATH=/x:$PATH\n", "ENV PATH"),
        ("environment/Dockerfile", "FROM x\nCOPY *.txt .\n", "COPY"),
        ("environment/Dockerfile", "FROM x\nWORKDIR /usr/src\n", "WORKDIR /usr/src"),
        ("environment/docker-compose.yaml", "services: {}\n", "docker-compose"),
        ("task.toml", "[environment]\ndocker_image = 'a/b:1'\n", "docker_image a/b:1"),
    ],
)
def test_a_task_that_needs_an_image_is_refused_by_bubblewrap(
    tmp_path: Path, file: str, text: str, said: str
) -> None:
    shutil.copytree(EXAMPLE / "hello", tmp_path / "hello")
    (tmp_path / "hello" / file).write_text(text)
    wanted = rf"task hello needs an image .*{said}.*say sandbox: docker"
    with pytest.raises(EnvError, match=wanted):
        make("work", {"harbor": str(tmp_path)}, {})
    make("work", {"harbor": str(tmp_path), "sandbox": "docker"}, {})


def test_a_folder_that_is_no_task_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no folder"):
        list(HarborRows(harbor=str(tmp_path / "x"), env_class="work").tasks())
    (tmp_path / "task.toml").write_text("[agent]\ntimeout_sec = 'long'\n")
    with pytest.raises(DataError, match=r"instruction\.md is missing"):
        list(HarborRows(harbor=str(tmp_path), env_class="work").tasks())
