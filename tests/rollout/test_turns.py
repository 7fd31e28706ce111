"""Turn ends and openings come from the template: what is sampled over several turns is what the
template writes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rl_core.data.prepare.chat_template import ChatTemplate, with_reply
from rl_core.envs import BaseTextEnv, BaseTextEnvStepOutput, register
from rl_core.envs import registration as registration_module
from rl_core.envs.turns import most_turns, of_several_turns
from rl_core.models.chat.turns import CannotContinue, derive_turns
from rl_core.models.decoding.request import Reply, Request, StopReason
from rl_core.rollout.chat.text import ChatFormat
from rl_core.rollout.episodes.episode import Episode
from rl_core.rollout.episodes.loop import run_episodes
from rl_core.rollout.episodes.several_turns import check_several_turns
from tests.rollout.chat_templates import (
    IM,
    QWEN_3,
    SHAPES,
    Shape,
    character_tokenizer,
    chatml,
    tokenizer_of,
)

WORDS = ["one", "two", "3 + 4"]
"""Replies."""


class TalkingEnv(BaseTextEnv):
    """Three turns; says what the class is told to say, in a role of its own."""

    role = "user"

    def step(self, action: str) -> BaseTextEnvStepOutput:
        self.turns += 1
        self._metrics = {"turns": float(self.turns)}
        said = [{"role": self.role, "content": f"heard {action.strip()}"}]
        done = self.turns == len(WORDS)
        return BaseTextEnvStepOutput(
            observations=[] if done else said, reward=0.0, done=done, metadata={"heard": action}
        )


class ToolEnv(TalkingEnv):
    """Speaks as a tool."""

    role = "tool"


@pytest.fixture(autouse=True)
def environments(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registration_module, "_specs", {})
    register("talking", TalkingEnv, kwargs={"env_config": {"max_turns": 3}})
    register("tool", ToolEnv, kwargs={"env_config": {"max_turns": 3}})
    yield


def play(
    chat: ChatFormat,
    end: str,
    env_class: str = "talking",
    prompt: list[dict[str, Any]] | None = None,
    around: tuple[str, str] = ("", ""),
) -> Episode:
    """A conversation of three turns, each reply ended by the token `end`; the last is taken off
    again.

    Args: around: what each reply begins with, and what it ends with before `end`.
    """
    item = {
        "uid": "a",
        "prompt": prompt or [{"role": "user", "content": "go"}],
        "env_class": env_class,
        "env_extras": {"reward_spec": {"ground_truth": "1"}},
    }
    replies = [
        chat.tokenizer.encode(around[0] + words + around[1] + end, add_special_tokens=False)
        for words in WORDS
    ]
    left = iter(replies)

    def generate(requests: list[Request]) -> list[Reply]:
        ids = next(left)
        return [Reply(ids, [-1.0] * len(ids), StopReason.EOS if end else StopReason.LENGTH)]

    (episode,) = run_episodes([item], 1, chat, generate, {}, 4096)
    if episode.num_turns == len(WORDS):
        episode.response_ids = episode.response_ids[: -len(replies[-1])]
    return episode


def told(role: str = "user", prompt: list[dict[str, Any]] | None = None) -> list[dict[str, Any]]:
    """The same conversation in messages, up to where the last reply begins."""
    messages = prompt or [{"role": "user", "content": "go"}]
    for words in WORDS[:-1]:
        messages = [*with_reply(messages, words), {"role": role, "content": f"heard {words}"}]
    return messages


def own_end(shape: Shape) -> str:
    """What ends a reply in this shape; nothing where only words would."""
    return shape.end or ("<|user|>" if "<|user|>" in shape.stops else "")


@pytest.mark.parametrize("name", SHAPES)
def test_replies_stop_where_the_template_ends_a_turn(name: str):
    shape = SHAPES[name]
    tokenizer = tokenizer_of(shape)
    chat = ChatFormat(tokenizer, {})
    assert {tokenizer.decode([one]) for one in chat.stop_ids} == shape.stops
    assert chat.turns.end_id == (
        None if shape.end is None else tokenizer.convert_tokens_to_ids(shape.end)
    )
    assert (chat.turns.cannot, chat.turns.rewrites) == ("", "")


@pytest.mark.parametrize("ended", [True, False], ids=["ended", "cut off"])
@pytest.mark.parametrize("name", SHAPES)
def test_a_conversation_of_tokens_is_what_the_template_renders(name: str, ended: bool):
    shape = SHAPES[name]
    chat = ChatFormat(tokenizer_of(shape), {})
    episode = play(
        chat, own_end(shape) if ended else "", around=(shape.gap, shape.tail if ended else "")
    )
    assert (episode.error, episode.num_turns) == (None, 3)
    assert chat.tokenizer.decode(episode.context) == chat.template.prompt(told())
    assert episode.context == chat.encode(told())


def test_turns_are_the_messages_with_their_tokens():
    shape = SHAPES["gemma"]
    episode = play(ChatFormat(tokenizer_of(shape), {}), own_end(shape), around=("", shape.tail))
    said = [(one["role"], one["content"]) for one in episode.turns]
    heard = [("user", f"heard {words}") for words in WORDS[:-1]]
    replies = [("assistant", one) for one in episode.replies]
    assert said == [replies[0], heard[0], replies[1], heard[1], replies[2]]
    *earlier, last = [one["num_tokens"] for one in episode.turns]
    assert last == episode.last_reply_tokens
    assert sum(earlier) == len(episode.response_ids)
    assert [one["reward"] for one in episode.turns] == [0.0, None, 0.0, None, 0.0]


@pytest.mark.parametrize(
    "name", [name for name in SHAPES if name not in ("mistral", "gemma", "llama 2", "deepseek")]
)
def test_system_prompts_and_examples_stay_in_the_conversation(name: str):
    shape = SHAPES[name]
    chat = ChatFormat(tokenizer_of(shape), {})
    roles = ["system", "user", "assistant", "user"]
    prompt = [{"role": role, "content": f"{role} {at}"} for at, role in enumerate(roles)]
    episode = play(chat, own_end(shape), prompt=prompt, around=(shape.gap, shape.tail))
    assert episode.error is None
    assert episode.context == chat.encode(told(prompt=prompt))


@pytest.mark.parametrize("name", ["gemma", "llama 3"])
def test_spaces_that_a_template_would_strip_stay_as_they_were_sampled(name: str):
    shape = SHAPES[name]
    chat = ChatFormat(tokenizer_of(shape), {})
    episode = play(chat, own_end(shape), around=(" ", "\n"))
    spaced = chat.template.prompt(told())
    for words in WORDS[:-1]:
        spaced = spaced.replace(f"\n{words}<", f"\n {words}\n<")
    assert episode.error is None and chat.tokenizer.decode(episode.context) == spaced


@pytest.mark.parametrize("name", SHAPES)
def test_no_stop_token_loses_a_mark_or_doubles_an_end(name: str):
    shape = SHAPES[name]
    chat = ChatFormat(tokenizer_of(shape), {})
    said = [{"role": "user", "content": "next"}]
    whole = chat.observation(said, after=[])
    opening = chat.tokenizer.decode(whole)
    ids = {token: chat.tokenizer.convert_tokens_to_ids(token) for token in shape.stops}
    for token, token_id in ids.items():
        seen = token + chat.tokenizer.decode(chat.observation(said, after=[token_id]))
        if shape.end is not None:
            assert seen == opening.lstrip().replace(shape.end, token, 1), (
                "the stop token stands for the end"
            )
        elif opening.startswith(token):
            assert seen == opening, "the mark that the reply wrote itself is not written again"
        else:
            assert seen == token + opening, "the mark of the next role was lost"


def test_glm_answers_a_tool_call_with_an_observation():
    shape = SHAPES["glm 4"]
    chat = ChatFormat(tokenizer_of(shape), {})
    episode = play(chat, "<|observation|>", env_class="tool")
    assert episode.error is None
    text = chat.tokenizer.decode(episode.response_ids)
    assert text.startswith(
        "one<|observation|>\nheard one<|assistant|>two<|observation|>\nheard two<|assistant|>"
    )
    other = play(chat, "<|endoftext|>")
    text = chat.tokenizer.decode(other.response_ids)
    assert text.startswith("one<|endoftext|><|user|>\nheard one<|assistant|>")


@pytest.mark.parametrize("end", ["<|im_end|>", "<|endoftext|>", ""])
def test_a_base_models_turn_ends_once(end: str):
    chat = ChatFormat(tokenizer_of(SHAPES["chatml of a base model"]), {})
    text = chat.tokenizer.decode(play(chat, end).response_ids)
    assert text.startswith(
        f"one{end or '<|im_end|>'}\n<|im_start|>user\nheard one<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_template_that_takes_parts_is_given_parts():
    shape = SHAPES["idefics 3"]
    template = ChatTemplate(tokenizer_of(shape))
    assert template.takes_parts
    roles = {"a": "user", "b": "assistant", "c": "user"}
    assert template.prompt([{"role": role, "content": text} for text, role in roles.items()]) == (
        "<|im_start|>User: a<end_of_utterance>\nAssistant: b<end_of_utterance>\nUser: "
        "c<end_of_utterance>\nAssistant:"
    )
    assert not any(
        ChatTemplate(tokenizer_of(one)).takes_parts
        for name, one in SHAPES.items()
        if name != "idefics 3"
    )


def test_a_role_that_the_template_refuses_fails_its_row_and_says_so():
    episode = play(ChatFormat(tokenizer_of(SHAPES["gemma"]), {}), "<end_of_turn>", env_class="tool")
    assert episode.error is not None
    assert "refuses a turn of role tool after a reply: there is no role tool" in episode.error


RAISES = (
    "{% if messages | length > 1 %}{{ raise_exception('one message only') }}{% endif %}{{ "
    "messages[0].content }}"
)
REFUSED = {
    "drops earlier turns": (
        "{{ messages[-1].content }}",
        {},
        "leaves out the assistant's earlier turns",
    ),
    "raises": (RAISES, {}, "refuses a turn of role user after a reply: one message only"),
    "strips reasoning": (QWEN_3, {}, "leaves out the reasoning"),
    "drops what it opened": (
        QWEN_3,
        {"enable_thinking": False},
        "rewrites what was said before: '<think>",
    ),
    "moves the system prompt": (
        "{% for m in messages %}{% if loop.last %}[be brief]{% endif %}{{ m.content "
        "}}<|im_end|>{% endfor %}",
        {},
        "rewrites what was said before",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_template_that_cannot_carry_several_turns_plays_one_and_refuses_more_with_the_reason(
    kind: str,
):
    template, options, reason = REFUSED[kind]
    chat = ChatFormat(character_tokenizer(template, IM, "<|im_end|>"), options)
    assert chat.encode([{"role": "user", "content": "go"}]), "one turn goes on"
    with pytest.raises(CannotContinue, match=reason):
        play(chat, "<|im_end|>")
    named = {"single": {"target": f"{__name__}:TalkingEnv"}, "talking": {}}
    assert of_several_turns(named, "rewrite") == ["talking"]
    with pytest.raises(CannotContinue, match=f"environment talking has several turns: .*{reason}"):
        check_several_turns(chat, of_several_turns(named))


def test_the_number_of_turns_is_that_of_recipe_or_class():
    assert [most_turns(name) for name in ("search", "gsm8k", "text2sql", "rewrite")] == [2, 1, 5, 1]
    assert most_turns("search", {"max_turns": 1}) == 1
    assert most_turns("own", {"target": f"{__name__}:TalkingEnv", "max_turns": 4}) == 4


@pytest.mark.parametrize("kind", ["strips reasoning", "drops what it opened"])
def test_earlier_turns_stay_as_they_were_sampled_where_the_recipe_asks_for_it(kind: str):
    template, options, _ = REFUSED[kind]
    chat = ChatFormat(
        character_tokenizer(template, IM, "<|im_end|>"), options, keep_earlier_turns=True
    )
    episode = play(chat, "<|im_end|>")
    opened = "<|im_start|>assistant\n" + ("<think>\n\n</think>\n\n" if options else "")
    text = chat.tokenizer.decode(episode.response_ids)
    assert episode.error is None
    assert text.startswith(f"one<|im_end|>\n<|im_start|>user\nheard one<|im_end|>\n{opened}two")


def test_the_real_prompt_is_compared_too_not_only_the_probes():
    # Right where no system message stands, as in the probes.
    moving = "{% if messages[0].role == 'system' %}{{ messages | length }}{% endif %}" + chatml()
    chat = ChatFormat(character_tokenizer(moving, IM, "<|im_end|>"), {})
    assert (chat.turns.cannot, chat.turns.rewrites) == ("", "")
    prompt = [{"role": "system", "content": "x"}, {"role": "user", "content": "go"}]
    error = play(chat, "<|im_end|>", prompt=prompt).error
    assert error is not None and "rewrites what was said before: '2<|im_start|>" in error


UNREADABLE = [
    "{{ nothing.at.all }}",
    "{% for m in messages %}{{ m.content[0].text.x }}{% endfor %}",
    "",
]


@pytest.mark.parametrize("template", UNREADABLE)
def test_probing_never_raises(template: str):
    tokenizer = character_tokenizer(template, IM, "<|im_end|>")
    turns = derive_turns(ChatTemplate(tokenizer), tokenizer)
    assert turns.cannot and not turns.stop_ids
