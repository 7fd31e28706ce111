"""The multi-turn loop, with an environment of the test's own and a scripted policy."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rl_core.envs import BaseTextEnv, BaseTextEnvStepOutput, register
from rl_core.envs import registration as registration_module
from rl_core.errors import ModelError
from rl_core.models.chat.tokenizer import load_tokenizer
from rl_core.models.decoding.request import Reply, Request, StopReason
from rl_core.rollout.chat.text import ChatFormat
from rl_core.rollout.episodes.env_calls import EnvCall
from rl_core.rollout.episodes.episode import Episode
from rl_core.rollout.episodes.loop import run_episodes

EOS = "<|im_end|>"
closed: list[int] = []


class EchoEnv(BaseTextEnv):
    """Two turns: pays 0.25 for each and says back what it heard; fails on the word `crash`."""

    def step(self, action: str) -> BaseTextEnvStepOutput:
        if action == "crash":
            raise ValueError("no such move")
        self.turns += 1
        done = self.turns == self.max_turns
        heard = [] if done else [{"role": "user", "content": f"heard {action}"}]
        return BaseTextEnvStepOutput(
            observations=heard, reward=0.25, done=done, metadata={"heard": action}
        )

    def close(self) -> None:
        closed.append(id(self))


class WaitingEnv(EchoEnv):
    """The same, as a coroutine."""

    async def step(self, action: str) -> BaseTextEnvStepOutput:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().step(action)


class RefusingEnv(EchoEnv):
    """Fails before the first turn."""

    def init(self, prompt: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        raise ValueError("no such game")


@pytest.fixture(autouse=True)
def environments(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registration_module, "_specs", {})
    register("echo", EchoEnv, kwargs={"env_config": {"max_turns": 2}})
    register("waiting", WaitingEnv, kwargs={"env_config": {"max_turns": 2}})
    register("refusing", RefusingEnv)
    closed.clear()
    yield


@pytest.fixture(scope="module")
def chat(tiny_model_dir: Path) -> ChatFormat:
    return ChatFormat(load_tokenizer(str(tiny_model_dir)), {})


def item(text: str = "go", env_class: str = "echo") -> dict[str, Any]:
    return {
        "uid": text,
        "prompt": [{"role": "user", "content": text}],
        "env_class": env_class,
        "env_extras": {"reward_spec": {"ground_truth": "1"}},
    }


class Script:
    """A policy that says the given texts in turn and remembers what it was asked."""

    def __init__(self, chat: ChatFormat, *turns: list[str]) -> None:
        self.chat, self.turns = chat, list(turns)
        self.asked: list[list[Request]] = []
        self.said: list[list[Reply]] = []

    def __call__(self, requests: list[Request]) -> list[Reply]:
        self.asked.append(requests)
        replies = []
        for position, text in enumerate(self.turns.pop(0)):
            ids = self.chat.tokenizer.encode(text)
            log_probs = [-1.0 - position - index / 100 for index in range(len(ids))]
            replies.append(
                Reply(ids, log_probs, StopReason.EOS if text.endswith(EOS) else StopReason.LENGTH)
            )
        self.said.append(replies)
        return replies


@pytest.fixture
def play(chat: ChatFormat) -> Callable[..., tuple[list[Episode], Script]]:
    def run(items: list[dict[str, Any]], *turns: list[str], siblings: int = 1, limit: int = 512):
        script = Script(chat, *turns)
        return run_episodes(items, siblings, chat, script, {}, limit), script

    return run


def test_masks_and_log_probs_line_up_with_who_wrote_each_token(play, chat: ChatFormat):
    (episode,), script = play([item()], [f"one{EOS}"], [f"second{EOS}"])
    first, second = script.said[0][0], script.said[1][0]
    observation = chat.tokenizer.encode(
        "\n<|im_start|>user\nheard one<|im_end|>\n<|im_start|>assistant\n"
    )
    assert episode.response_ids == first.token_ids + observation + second.token_ids
    assert episode.mask == [1] * len(first.token_ids) + [0] * len(observation) + [1] * len(
        second.token_ids
    )
    assert episode.log_probs == first.log_probs + [0.0] * len(observation) + second.log_probs
    assert episode.stop_reason is StopReason.EOS
    assert episode.num_turns == 2


def test_the_second_turn_sees_everything_before_it(play):
    (episode,), script = play([item()], [f"one{EOS}"], [f"second{EOS}"])
    (first,), (second,) = script.asked
    length_of_second = len(script.said[1][0].token_ids)
    before_second = episode.prompt_ids + episode.response_ids[:-length_of_second]
    assert first == Request(episode.prompt_ids, 1, 512 - len(episode.prompt_ids), group=0)
    assert second == Request(before_second, 1, 512 - len(before_second), group=0)


def test_rewards_of_the_turns_add_up_and_the_last_metadata_stays(play):
    (episode,), _ = play([item()], [f"one{EOS}"], [f"second{EOS}"])
    assert episode.reward == 0.5
    assert episode.metadata == {"heard": "second"}


def test_siblings_are_adjacent_share_one_prefill_and_have_environments_of_their_own(play):
    texts = [f"{name}{EOS}" for name in ("a", "b", "c", "d")]
    episodes, script = play([item("x"), item("y")], texts, texts, siblings=2)
    prompts = [episodes[0].prompt_ids, episodes[2].prompt_ids]
    assert script.asked[0] == [
        Request(prompt, 2, 512 - len(prompt), group=group) for group, prompt in enumerate(prompts)
    ]
    assert [episode.group for episode in episodes] == [0, 0, 1, 1]
    assert [episode.item["uid"] for episode in episodes] == ["x", "x", "y", "y"]
    assert [episode.reward for episode in episodes] == [0.5] * 4, "siblings counted turns together"
    assert len(set(closed)) == 4


def test_a_failing_environment_fails_only_its_own_row(play):
    episodes, script = play(
        [item("x"), item("y"), item("z")], [f"a{EOS}", "crash", f"c{EOS}"], [f"d{EOS}", f"e{EOS}"]
    )
    assert episodes[0].error is episodes[2].error is None
    assert str(episodes[1].error).startswith("ValueError: no such move (test_loop.py:")
    assert [episode.reward for episode in episodes] == [0.5, 0.0, 0.5]
    assert len(script.asked[1]) == 2, "the failed row played on"
    assert [episode.failed_call for episode in episodes] == [None, EnvCall.STEP, None]
    assert episodes[1].stop_reason is StopReason.FAILED
    assert [episode.metadata.get("heard") for episode in episodes] == ["d", None, "e"]
    assert len(closed) == 3


def test_an_environment_that_cannot_start_fails_only_its_own_row(play):
    episodes, script = play([item("x"), item("y", "refusing")], [f"a{EOS}"], [f"c{EOS}"])
    assert episodes[0].error is None
    assert str(episodes[1].error).startswith("ValueError: no such game (test_loop.py:")
    assert (episodes[1].failed_call, episodes[1].num_turns, episodes[1].response_ids) == (
        EnvCall.INIT,
        0,
        [],
    )
    assert len(episodes[1].prompt_ids) == 1, "a row needs a token to have its place in the batch"
    assert [episode.reward for episode in episodes] == [0.5, 0.0]
    assert len(script.asked[0]) == 1, "tokens were spent on a row without an environment"
    assert len(closed) == 2, "what was made was not closed"


def test_an_observation_that_does_not_fit_ends_the_episode(play):
    (fits,), _ = play([item()], [f"one{EOS}"], [f"second{EOS}"])
    length_at_second_turn = len(fits.prompt_ids) + len(fits.response_ids) - len("second") - 1
    (allowed,), _ = play([item()], [f"one{EOS}"], [f"second{EOS}"], limit=length_at_second_turn + 1)
    assert allowed.num_turns == 2
    (cut,), script = play([item()], [f"one{EOS}"], limit=length_at_second_turn)
    assert (cut.stop_reason, cut.num_turns, cut.reward) == (StopReason.CONTEXT, 1, 0.25)
    assert cut.response_ids == script.said[0][0].token_ids, (
        "the observation nobody answers was kept"
    )
    assert cut.error is None


def test_an_asynchronous_step_gives_the_same_episode(play):
    (waiting,), _ = play([item(env_class="waiting")], [f"one{EOS}"], [f"second{EOS}"])
    (plain,), _ = play([item()], [f"one{EOS}"], [f"second{EOS}"])
    assert waiting.error is None
    for name in (
        "prompt_ids",
        "response_ids",
        "mask",
        "log_probs",
        "reward",
        "metadata",
        "num_turns",
    ):
        assert getattr(waiting, name) == getattr(plain, name)


OBSERVATION = [{"role": "user", "content": "next?"}]


@pytest.mark.parametrize("ended", [True, False], ids=["ended by the model", "cut off"])
def test_prompt_reply_and_observation_are_the_template_of_the_whole_conversation(
    chat: ChatFormat, ended: bool
):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}]
    reply = chat.tokenizer.encode("It is 2." + EOS * ended)
    tokens = chat.encode(messages) + reply + chat.observation(OBSERVATION, after=reply)
    conversation = [*messages, {"role": "assistant", "content": "It is 2."}, *OBSERVATION]
    assert chat.tokenizer.decode(tokens) == chat.tokenizer.apply_chat_template(
        conversation, add_generation_prompt=True, tokenize=False
    )
    assert tokens == chat.encode(conversation)


def test_the_observation_depends_on_the_reply_only_through_its_end(chat: ChatFormat):
    eos, unknown = chat.tokenizer.eos_token_id, chat.tokenizer.unk_token_id
    ended = chat.observation(OBSERVATION, after=[unknown, 40, eos])
    assert ended == chat.observation(OBSERVATION, after=[eos])
    assert chat.observation(OBSERVATION, after=[unknown, 40]) == [eos, *ended]


def test_any_stop_token_ends_the_turn_once(chat: ChatFormat):
    tokenizer = chat.tokenizer
    other, eos = tokenizer.unk_token_id, tokenizer.eos_token_id
    several = ChatFormat(tokenizer, {}, [other])
    ended = chat.observation(OBSERVATION, after=[40, eos])
    assert several.observation(OBSERVATION, after=[40, other]) == ended
    assert several.observation(OBSERVATION, after=[40, eos]) == ended
    assert chat.observation(OBSERVATION, after=[40, other]) == [eos, *ended], (
        "not a stop token of this model"
    )


def test_a_template_may_end_turns_with_a_stop_token_that_is_not_the_tokenizers(
    tiny_model_dir: Path,
):
    tokenizer = load_tokenizer(str(tiny_model_dir))
    end = tokenizer.convert_tokens_to_ids("<|unk|>")
    tokenizer.chat_template = tokenizer.chat_template.replace("<|im_end|>", "<|unk|>")
    chat = ChatFormat(tokenizer, {}, [end])
    whole = chat.encode(
        [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}, *OBSERVATION]
    )
    reply = [*tokenizer.encode("2"), end]
    assert (
        chat.encode([{"role": "user", "content": "1"}])
        + reply
        + chat.observation(OBSERVATION, after=reply)
        == whole
    )


def test_a_template_that_hides_replies_is_refused(tiny_model_dir: Path):
    tokenizer = load_tokenizer(str(tiny_model_dir))
    tokenizer.chat_template = "{{ messages[-1]['content'] }}"
    with pytest.raises(ModelError, match="leaves out the assistant's earlier turns"):
        ChatFormat(tokenizer, {}).observation(OBSERVATION, after=[])


def test_odd_tokens_of_a_reply_stay_as_they_were_sampled(play, chat: ChatFormat):
    # Text of these ids encodes back to other ids, so re-encoding the reply would show.
    odd = [
        chat.tokenizer.unk_token_id,
        20,
        chat.tokenizer.pad_token_id,
        chat.tokenizer.eos_token_id,
    ]
    assert chat.tokenizer.encode(chat.decode(odd)) != odd
    replies = iter(
        [[Reply(odd, [-1.0] * 4, StopReason.EOS)], [Reply([21], [-1.0], StopReason.LENGTH)]]
    )
    (episode,) = run_episodes([item()], 1, chat, lambda requests: next(replies), {}, 512)
    assert episode.response_ids[:4] == odd
    assert episode.num_turns == 2


def test_template_options_reach_prompt_and_observation_alike(tiny_model_dir: Path):
    tokenizer = load_tokenizer(str(tiny_model_dir))
    role = "{{ message['role'] }}"
    tokenizer.chat_template = tokenizer.chat_template.replace(
        role, role + "{{ mood if message['role'] == 'assistant' else '' }}"
    ).replace("assistant\n{% endif %}", "assistant{{ mood }}\n{% endif %}")
    chat = ChatFormat(tokenizer, {"mood": " calmly"})
    assert tokenizer.decode(chat.encode([{"role": "user", "content": "1"}])).endswith(
        "assistant calmly\n"
    )
    assert tokenizer.decode(chat.observation(OBSERVATION, after=[])).endswith("assistant calmly\n")
