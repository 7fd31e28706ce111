"""The text of a reply as environments read it: tags stay, control tokens do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_core.envs.search import SearchEnv
from rl_core.errors import RecipeError
from rl_core.models.bundle import ModelBundle
from rl_core.models.decoding.request import Reply, StopReason
from rl_core.rollout.chat.text import ChatFormat
from rl_core.rollout.chat.vision import chat_format
from rl_core.rollout.episodes.loop import run_episodes
from schemas.recipe import ModelConfig
from tests.rollout.chat_templates import SHAPES, character_tokenizer, chatml, tokenizer_of

TAGS = ("<search>", "</search>", "[TOOL_CALLS]", "<think>", "</think>")


def ids(chat: ChatFormat, text: str) -> list[int]:
    return chat.tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("name", SHAPES)
def test_special_tags_stay_and_what_the_template_writes_around_contents_does_not(name: str):
    shape = SHAPES[name]
    chat = ChatFormat(tokenizer_of(shape, *TAGS), {})
    words = "<think>hm</think><search>who</search>[TOOL_CALLS]x"
    for end in ["", *shape.stops, "<pad>", shape.bos or ""]:
        assert chat.decode(ids(chat, words + end)) == words
    written = chat.template.conversation(
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    )
    marks = [token for token in shape.special if token in written]
    assert not any(token in chat.decode(ids(chat, written)) for token in marks)


def test_a_recipe_names_what_it_keeps():
    tokenizer = tokenizer_of(SHAPES["chatml"], *TAGS)
    text = "<search>who</search>[TOOL_CALLS]x<|im_end|>"
    chosen = ChatFormat(tokenizer, {}, keep_special_tokens=["[TOOL_CALLS]", "not a token"])
    assert chosen.decode(ids(chosen, text)) == "who[TOOL_CALLS]x"
    assert chosen.decode(ids(chosen, text), SearchEnv.tags) == "<search>who</search>[TOOL_CALLS]x"
    nothing = ChatFormat(tokenizer, {}, keep_special_tokens=[])
    assert nothing.decode(ids(nothing, text)) == "whox"
    with pytest.raises(RecipeError, match=r"keep_special_tokens: <\|im_end\|> ends replies"):
        ChatFormat(tokenizer, {}, keep_special_tokens=["<|im_end|>"])


def test_tags_of_an_environment_stay_although_the_template_opens_replies_with_them():
    opens = chatml().replace("assistant\n' }}", "assistant\n<think>' }}")
    chat = ChatFormat(
        character_tokenizer(opens, ("<|im_start|>", "<|im_end|>", *TAGS), "<|im_end|>"), {}
    )
    reply = ids(chat, "<think>a</think>b<|im_end|>")
    assert chat.decode(reply) == "<think>a</think>b"


def test_the_search_environment_hears_its_tags():
    chat = ChatFormat(
        tokenizer_of(SHAPES["chatml"], "<answer>", "</answer>"), {}, keep_special_tokens=[]
    )
    item = {
        "uid": "a",
        "prompt": [{"role": "user", "content": "who?"}],
        "env_class": "search",
        "env_extras": {"reward_spec": {"ground_truth": "me"}},
    }
    reply = ids(chat, "<answer>me</answer><|im_end|>")
    said = [Reply(reply, [-1.0] * len(reply), StopReason.EOS)]
    (episode,) = run_episodes([item], 1, chat, lambda requests: said, {}, 512)
    assert (episode.error, episode.replies, episode.reward) == (None, ["<answer>me</answer>"], 1.0)


def test_a_reply_without_tags_reads_as_it_always_did():
    tokenizer = tokenizer_of(SHAPES["chatml"])
    chat = ChatFormat(tokenizer, {})
    odd = [
        tokenizer.unk_token_id,
        *ids(chat, "a<|im_start|>b"),
        tokenizer.pad_token_id,
        tokenizer.eos_token_id,
    ]
    assert chat.decode(odd) == tokenizer.decode(odd, skip_special_tokens=True) == "ab"


def test_an_end_of_turn_that_is_no_special_token_is_no_text():
    from tokenizers import AddedToken

    tokenizer = character_tokenizer(chatml(), ("<|im_start|>", "<|endoftext|>"), "<|endoftext|>")
    tokenizer.add_tokens([AddedToken("<|im_end|>", special=False)])
    chat = ChatFormat(tokenizer, {})
    assert chat.turns.end_id == tokenizer.convert_tokens_to_ids("<|im_end|>") in chat.stop_ids
    assert chat.decode(ids(chat, "2<|im_end|>")) == "2"


def test_tokens_of_pictures_are_no_text(tiny_vlm_dir: Path):
    chat = chat_format(ModelBundle(str(tiny_vlm_dir), ModelConfig(path=str(tiny_vlm_dir))), {})
    reply = ids(chat, "<image>red<global-img><end_of_utterance><|im_end|>")
    text = chat.decode(reply, SearchEnv.tags)
    assert text == chat.tokenizer.decode(reply, skip_special_tokens=True) and "<image>" not in text
