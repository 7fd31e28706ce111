"""Environments of the verifiers package, played by the package itself."""

import json
from pathlib import Path
from typing import Any

import pytest

from rl_core.builtin.data.environments.files import materialise_environment_rows
from rl_core.builtin.data.environments.verifiers import VerifiersRows
from rl_core.envs.others.interpreters import PROJECT
from rl_core.envs.registration import make
from rl_core.errors import DataError, EnvError
from tests.rollout.agents.episode_of import episodes

PYTHON = PROJECT / ".venv-verifiers" / "bin" / "python"
HUB = Path(__file__).parent / "hub"
needs_verifiers = pytest.mark.skipif(
    not PYTHON.is_file(), reason="`make .venv-verifiers/.installed` builds what this needs"
)


@pytest.fixture(autouse=True)
def hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of the tasksets among those of modules."""
    monkeypatch.syspath_prepend(str(HUB))


def rows(folder: Path, **spec: Any) -> list[dict[str, Any]]:
    path = materialise_environment_rows(
        VerifiersRows(env_class="mine", **{"split": "all"} | spec), folder
    )
    return [json.loads(line) for line in path.read_text().splitlines()]


@needs_verifiers
def test_a_tasksets_rewards_and_metrics_score_the_policy(tmp_path: Path) -> None:
    options = {"verifiers": "hub_words", "args": {"words": ["red", "green"]}}
    made = rows(tmp_path, **options)
    assert [row["reward_spec"]["ground_truth"] for row in made] == ["red", "green"]
    assert made[0]["prompt"] == [
        {"role": "system", "content": "One word."},
        {"role": "user", "content": "Say red"},
    ]
    assert made[0]["env_class"] == "mine" and made[0]["data_source"] == "verifiers/hub_words"
    ended, requests = episodes(options, made, lambda messages: "red")
    assert [one.reward for one in ended] == [1.5, 0.5], ended
    assert ended[0].metrics == {"letters": 3.0, "right": 1.0, "short": 0.5}
    asked = sorted((one["messages"] for one in requests), key=str)
    assert asked[1] == made[0]["prompt"]


@needs_verifiers
def test_an_environment_of_several_turns_is_one_conversation(tmp_path: Path) -> None:
    options = {"verifiers": "hub_guess"}
    made = rows(tmp_path, **options, read=3)
    assert len(made) == 3

    def count(messages: list[dict[str, Any]]) -> str:
        return str(sum(one["role"] == "assistant" for one in messages) + 1)

    ended, requests = episodes(options, made[2:], count)
    assert ended[0].reward == 1.0, ended
    assert ended[0].metrics == {"tries": 3.0}
    before, after = (one["messages"] for one in requests[-2:])
    assert after[: len(before)] == before and after[-1]["content"] == "No. More."
    ended, requests = episodes(options | {"max_turns": 2}, made[2:], count)
    assert ended[0].reward == 0.0 and len(requests) == 2, ended


@needs_verifiers
def test_a_tool_is_offered_called_and_answered(tmp_path: Path) -> None:
    options = {"verifiers": "hub_tools"}

    def look(messages: list[dict[str, Any]]) -> Any:
        if messages[-1]["role"] == "tool":
            return f"It is {messages[-1]['content']}."
        call = {"name": offered[0], "arguments": '{"country": "Peru"}'}
        return {"content": "", "tool_calls": [{"id": "1", "type": "function", "function": call}]}

    offered = ["atlas_capital"]
    ended, requests = episodes(options, rows(tmp_path, **options), look)
    assert ended[0].reward == 1.0, (ended, requests)
    assert requests[0]["tools"][0]["function"]["name"] == offered[0]


@needs_verifiers
@pytest.mark.parametrize(
    ("spec", "what"),
    [
        ({"verifiers": "hub_nowhere"}, "hub_nowhere is no environment of verifiers"),
        ({"verifiers": "hub_guess"}, "the taskset has no end"),
        ({"verifiers": "hub_words", "args": {"prompts": False}}, "task 0 has no prompt"),
        ({"verifiers": "hub_words", "args": {"colour": 1}}, "colour"),
        ({"verifiers": "hub_words", "size": 9}, "3 of its 3 tasks belong to all, size asks for 9"),
    ],
)
def test_what_is_wrong_with_a_taskset_is_said(
    tmp_path: Path, spec: dict[str, Any], what: str
) -> None:
    with pytest.raises(DataError, match=what):
        rows(tmp_path, **spec)


@needs_verifiers
def test_a_reward_that_raises_leaves_the_row_without_a_verdict(tmp_path: Path) -> None:
    args = {"words": ["red"], "task": {"fault": "reward"}}
    made = rows(tmp_path, verifiers="hub_words", args=args)
    ended, _ = episodes({"verifiers": "hub_words", "args": args}, made, lambda messages: "red")
    assert ended[0].reward is None and "no reward of this" in str(ended[0].error)


def test_an_interpreter_without_the_package_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(EnvError, match=r"make .venv-verifiers/.installed"):
        make("mine", {"verifiers": "hub_words", "python": str(tmp_path / "python")}, {})
