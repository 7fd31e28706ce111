"""Environments of OpenEnv, served and asked by the package itself."""

import json
from pathlib import Path
from typing import Any

import pytest

from rl_core.builtin.data.environments.files import materialise_environment_rows
from rl_core.builtin.data.environments.openenv import OpenEnvRows
from rl_core.envs.others.interpreters import PROJECT
from rl_core.envs.registration import make
from rl_core.errors import EnvError
from schemas.rows.ground_truth import ANY_GROUND_TRUTH
from schemas.rows.prompt_rows import prompt_contract
from tests.rollout.agents.episode_of import episodes

PYTHON = PROJECT / ".venv-openenv" / "bin" / "python"
HUB = Path(__file__).parent / "hub"
needs_openenv = pytest.mark.skipif(
    not PYTHON.is_file(), reason="`make .venv-openenv/.installed` builds what this needs"
)


@pytest.fixture(autouse=True)
def hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of the servers among those of modules."""
    monkeypatch.syspath_prepend(str(HUB))


def row(**reset: Any) -> dict[str, Any]:
    return {"prompt": [], "extra_info": {"openenv_reset": json.dumps(reset)}}


@needs_openenv
def test_replies_are_actions_and_steps_are_rewarded() -> None:
    said = {5: ["6", "7", "9"], 8: ["10", "12", "14"], 0: ["1", "crash"]}

    def count(messages: list[dict[str, Any]]) -> str:
        start = int(messages[0]["content"].rpartition("after ")[2].strip("?"))
        return f" {said[start][sum(one['role'] == 'assistant' for one in messages)]}\n"

    options = {"openenv": "hub_server:app", "instructions": "Count."}
    rows = [row(seed=5), row(seed=8, step=2), row(seed=0)]
    ended, requests = episodes(options, rows, count)
    assert [one.rewards for one in ended[:2]] == [(1.0, 1.0, 0.0), (1.0, 1.0, 1.0)], ended
    assert ended[0].metrics == {"done": 1.0, "refused_actions": 0.0}
    assert ended[2].rewards is None and "the world ends" in str(ended[2].error)
    first = [one["messages"] for one in requests if "after 5" in one["messages"][0]["content"]]
    assert first[0] == [{"role": "user", "content": "Count.\n\nWhat comes 1 after 5?"}]
    assert [one["content"] for one in first[2][1:]] == [" 6\n", "And then?", " 7\n", "And then?"]


@needs_openenv
def test_an_action_of_several_fields_is_json_and_a_malformed_one_is_told() -> None:
    said = ["Left!", '{"x": "far", "y": 1}', 'I go {"x": 1, "y": 1} now', '{"x": 2, "y": 2}']

    def walk(messages: list[dict[str, Any]]) -> str:
        return said[sum(one["role"] == "assistant" for one in messages)]

    ended, requests = episodes({"openenv": "hub_server:board"}, [row()], walk)
    assert ended[0].rewards == (0.0, 0.0, -0.1, 1.0), ended
    assert ended[0].metrics == {"done": 1.0, "refused_actions": 2.0}
    told = [one["content"] for one in requests[-1]["messages"] if one["role"] == "user"]
    assert '"x"' in told[0] and told[0].endswith('{"place": [0, 0], "size": 3}')
    assert told[1] == "error: the reply has no JSON object"
    assert told[2].startswith("error: the action does not fit its schema")


@needs_openenv
def test_what_cannot_be_played_fails_with_the_reason() -> None:
    ended, _ = episodes({"openenv": "hub_server:mute"}, [row(seed=1)], lambda messages: "1")
    assert ended[0].error is not None and "no reward in any step" in ended[0].error
    ended, _ = episodes({"openenv": "http://127.0.0.1:9"}, [row(seed=1)], lambda messages: "1")
    assert ended[0].error is not None and "no OpenEnv server answers at" in ended[0].error
    with pytest.raises(EnvError, match=r"hub_server:nothing ended at once: .*nothing"):
        episodes({"openenv": "hub_server:nothing"}, [row()], lambda messages: "1")


def test_rows_are_resets_by_seed_that_splits_do_not_share(tmp_path: Path) -> None:
    seeds = {}
    for split in ("train", "eval"):
        spec = OpenEnvRows(openenv="count", env_class="mine", split=split, size=30, reset={"a": 1})
        lines = materialise_environment_rows(spec, tmp_path).read_text().splitlines()
        resets = [json.loads(json.loads(one)["extra_info"]["openenv_reset"]) for one in lines]
        assert all(one["a"] == 1 for one in resets)
        assert not [
            found
            for one in lines
            for found in prompt_contract({"mine": ANY_GROUND_TRUTH}).problems(json.loads(one))
        ]
        seeds[split] = {one["seed"] for one in resets}
    assert len(seeds["train"]) == len(seeds["eval"]) == 30 and not seeds["train"] & seeds["eval"]
    spec = OpenEnvRows(openenv="count", env_class="mine", split="all", size=2, tasks_of="test")
    lines = materialise_environment_rows(spec, tmp_path).read_text().splitlines()
    assert '{"index": 1, "split": "test"}' in json.loads(lines[1])["extra_info"]["openenv_reset"]


@pytest.mark.parametrize("named", ["localhost:8000", "ftp://a", "my_env"])
def test_what_names_no_server_is_refused(named: str) -> None:
    with pytest.raises(EnvError, match="must be http://host:port, or an application"):
        make("mine", {"openenv": named}, {})
