"""Strings that end a turn: those of the recipe and those of the environment, which sees the string
at the end of the reply."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rl_core.envs import BaseTextEnv, BaseTextEnvStepOutput, register
from rl_core.envs import registration as registration_module
from rl_core.envs.base import tag_pairs
from rl_core.envs.registration import environments as built_in
from rl_core.models.decoding.request import Reply, Request, StopReason
from rl_core.rollout.chat.text import ChatFormat
from rl_core.rollout.episodes.episode import Episode
from rl_core.rollout.episodes.loop import run_episodes
from tests.rollout.chat_templates import IM, character_tokenizer, chatml

SAID = "a </call> b </answer> c; d"
"""What the policy says in each turn, unless a stop string ends it before."""


class CallingEnv(BaseTextEnv):
    """Two turns, which a closed call or an answer ends."""

    stop = ("</call>",)
    tags = tag_pairs("call")

    def step(self, action: str) -> BaseTextEnvStepOutput:
        self.turns += 1
        heard = [{"role": "user", "content": "go on </answer>"}] if self.turns == 1 else []
        return BaseTextEnvStepOutput(
            observations=heard, reward=0.0, done=self.turns == 2, metadata={"heard": action}
        )


class ForeignEnv:
    """An environment of nobody's base class, without stop strings of its own."""

    def __init__(self, env_config: Any = None, extras: Any = None) -> None:
        pass

    def init(self, prompt: Any) -> Any:
        return prompt, {}

    def step(self, action: str) -> dict[str, Any]:
        return {"observations": [], "reward": 0.0, "done": True, "metadata": {"heard": action}}

    def close(self) -> None:
        pass


class OddEnv(ForeignEnv):
    """Its `stop` is something else."""

    def stop(self) -> None:
        pass


@pytest.fixture(autouse=True)
def environments(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registration_module, "_specs", {})
    register("calling", CallingEnv, kwargs={})
    register("foreign", ForeignEnv, kwargs={})
    register("odd", OddEnv, kwargs={})
    yield


def play(
    env_class: str, options: dict[str, Any] | None = None, stop: tuple[str, ...] = ()
) -> Episode:
    chat = ChatFormat(character_tokenizer(chatml(), IM, "<|im_end|>"), {})

    def generate(requests: list[Request]) -> list[Reply]:
        (request,) = requests
        ids = chat.tokenizer.encode(SAID, add_special_tokens=False)
        end = request.stop and request.stop.cut(ids, 0, chat.decode)
        reason = StopReason.LENGTH if end is None else StopReason.STOP
        return [Reply(ids[:end], [-1.0] * len(ids[:end]), reason)]

    item = {
        "uid": "row",
        "prompt": [{"role": "user", "content": "</answer>; question"}],
        "env_class": env_class,
        "env_extras": {"reward_spec": {"ground_truth": ""}},
    }
    given = {} if options is None else {env_class: options}
    (episode,) = run_episodes([item], 1, chat, generate, given, 10_000, stop=stop)
    return episode


@pytest.mark.parametrize(
    ("options", "stop", "heard"),
    [
        (None, (), "a </call>"),
        ({"stop": ["</answer>"]}, (), "a </call> b </answer>"),
        ({"stop": []}, (), SAID),
        ({"stop": []}, (";",), "a </call> b </answer> c;"),
        (None, ("</answer>",), "a </call>"),
    ],
)
def test_a_turn_ends_with_the_first_string_of_the_recipe_or_the_environment(
    options: dict[str, Any] | None, stop: tuple[str, ...], heard: str
):
    episode = play("calling", options, stop)
    assert episode.error is None
    assert episode.replies == [heard, heard]
    assert episode.metadata == {"heard": heard}
    # The string's tokens are the policy's own.
    assert sum(episode.mask) == 2 * len(heard)
    wanted = StopReason.LENGTH if heard == SAID else StopReason.STOP
    assert episode.stop_reason is wanted


def test_an_environment_without_such_an_attribute_takes_the_recipes_option():
    assert play("foreign").replies == [SAID]
    assert play("foreign", {"stop": [";"]}).replies == ["a </call> b </answer> c;"]


def test_a_stop_that_is_no_list_of_strings_fails_the_row_with_its_reason():
    episode = play("odd")
    assert not episode.has_verdict
    assert "OddEnv.stop must be a list of the strings that end a turn" in str(episode.error)


@pytest.mark.parametrize(
    ("env_id", "strings"),
    [
        ("search", ("</search>", "</answer>")),
        ("searchcode", ("</tool>", "</solution>")),
        ("text2sql", ("</sql>", "</solution>")),
        ("gsm8k", ()),
    ],
)
def test_environments_with_tools_end_the_turn_at_their_closing_tags(
    env_id: str, strings: tuple[str, ...]
):
    cls = built_in.get(env_id)
    assert cls.stop == strings
    assert set(strings) <= cls.tags or not strings
