"""A prompt whose last message is the assistant's: the reply goes on where it stops, counted and
encoded alike."""

from __future__ import annotations

from typing import Any

import pytest

from rl_core.data.prepare.prompt_lengths import LengthCounter
from rl_core.envs import BaseTextEnv, BaseTextEnvStepOutput, register
from rl_core.envs import registration as registration_module
from rl_core.errors import DataError, ModelError, RecipeError
from rl_core.models.chat.tokenizer import encode_chat
from rl_core.models.decoding.request import Reply, StopReason
from rl_core.rollout.chat.text import ChatFormat
from rl_core.rollout.episodes.loop import run_episodes
from rl_core.runs.recipes import load_recipe
from tests.rollout.chat_templates import IM, SHAPES, character_tokenizer, chatml, tokenizer_of

ASKED = [{"role": "user", "content": "2+2?"}]
PREFILLED = [*ASKED, {"role": "assistant", "content": "It is"}]


class HearingEnv(BaseTextEnv):
    """Two turns; remembers what it heard."""

    def step(self, action: str) -> BaseTextEnvStepOutput:
        self.turns += 1
        done = self.turns == 2
        said = [] if done else [{"role": "user", "content": "sure?"}]
        return BaseTextEnvStepOutput(
            observations=said, reward=0.0, done=done, metadata={"heard": action}
        )


@pytest.mark.parametrize("name", SHAPES)
def test_the_prompt_stops_where_the_assistant_does(name: str):
    shape = SHAPES[name]
    chat = ChatFormat(tokenizer_of(shape), {})
    text = chat.template.prompt(PREFILLED)
    assert text == chat.template.prompt(ASKED) + shape.gap + "It is"
    assert chat.encode(PREFILLED) == encode_chat(chat.tokenizer, PREFILLED, {})
    assert chat.tokenizer.decode(chat.encode(PREFILLED)) == text


@pytest.mark.parametrize("name", SHAPES)
def test_the_reply_continues_it_and_the_next_turn_holds_both(
    name: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(registration_module, "_specs", {})
    register("hearing", HearingEnv, kwargs={"env_config": {"max_turns": 2}})
    shape = SHAPES[name]
    chat = ChatFormat(tokenizer_of(shape), {})
    item = {
        "uid": "a",
        "prompt": PREFILLED,
        "env_class": "hearing",
        "env_extras": {"reward_spec": {"ground_truth": ""}},
    }
    end = shape.end or ("<|user|>" if "<|user|>" in shape.stops else "")
    reply = chat.tokenizer.encode(f" 4.{shape.tail if end else ''}{end}", add_special_tokens=False)
    (episode,) = run_episodes(
        [item],
        1,
        chat,
        lambda requests: [Reply(reply, [-1.0] * len(reply), StopReason.EOS)],
        {},
        512,
    )
    assert (episode.error, episode.num_turns) == (None, 2)
    assert [heard.strip() for heard in episode.replies] == ["4.", "4."], (
        "environments hear the reply alone"
    )
    whole = [
        *ASKED,
        {"role": "assistant", "content": "It is 4."},
        {"role": "user", "content": "sure?"},
    ]
    assert episode.context[: -len(reply)] == chat.encode(whole)


@pytest.mark.parametrize("name", SHAPES)
def test_preparation_counts_what_the_rollout_encodes(name: str):
    tokenizer = tokenizer_of(SHAPES[name])
    chat = ChatFormat(tokenizer, {})
    items = [{"prompt": prompt} for prompt in (ASKED, PREFILLED, [*PREFILLED, *ASKED])]
    counted = LengthCounter(tokenizer).lengths(items, ["a", "b", "c"])
    assert counted == [len(chat.encode(item["prompt"])) for item in items]
    assert counted[1] - counted[0] == len(SHAPES[name].gap + "It is")


OTHER = {
    "leaves it out": chatml().replace(
        "for m in messages", "for m in messages if m.role != 'assistant'"
    ),
    "raises": "{% if messages[-1].role == 'assistant' %}{{ raise_exception('user last') }}{% endif %}"  # noqa: E501
    + chatml(),
    "writes other words": chatml().replace("m.content", "m.content.replace('It', 'What')"),
}


@pytest.mark.parametrize("kind", OTHER)
def test_a_template_that_cannot_continue_a_message_is_refused_by_name_and_row(kind: str):
    tokenizer = character_tokenizer(OTHER[kind], IM, "<|im_end|>")
    chat = ChatFormat(tokenizer, {})
    assert chat.encode(ASKED)
    with pytest.raises(
        ModelError,
        match=r"cannot continue the assistant's last message 'It is'.*end the prompt with",
    ):
        chat.encode(PREFILLED)
    with pytest.raises(
        DataError,
        match=r"rows\.jsonl:7 field prompt: .*cannot continue the assistant's last message",
    ):
        LengthCounter(tokenizer).lengths([{"prompt": PREFILLED}], ["rows.jsonl:7"])


@pytest.mark.parametrize(
    "key", ["add_generation_prompt", "continue_final_message", "tokenize", "messages"]
)
def test_options_of_the_template_that_are_decided_here_are_refused(key: str):
    with pytest.raises(RecipeError, match=f"chat_template_kwargs: .*{key} cannot be set"):
        load_recipe("smoke/text", [f"model.chat_template_kwargs.{key}=true"])
    options: dict[str, Any] = {key: True}
    with pytest.raises(RecipeError, match=f"chat_template_kwargs: {key} cannot be set"):
        ChatFormat(tokenizer_of(SHAPES["chatml"]), options)
