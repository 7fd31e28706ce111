"""Requests of an episode put together to rows, with calls of tools among them."""

from pathlib import Path
from typing import Any

import numpy as np

from rl_core.models.chat.tokenizer import load_tokenizer
from rl_core.models.decoding.request import Reply, StopReason
from rl_core.rollout.agents.turns import TurnLog
from rl_core.rollout.chat.text import ChatFormat

ASKED = [{"role": "user", "content": "What is 1+1?"}]
CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
ANSWER = {"role": "tool", "tool_call_id": "call_1", "content": "2"}


def log_with_a_call(folder: Path) -> TurnLog:
    """A log of one request, whose reply calls a tool in tokens that no text would become."""
    tokenizer = load_tokenizer(str(folder))
    log = TurnLog(ChatFormat(tokenizer, {}))
    asked = log.encode(ASKED, [])
    turn = log.begin(asked)
    letters = [tokenizer.encode(one, add_special_tokens=False)[0] for one in "call"]
    tokens = [*letters, tokenizer.eos_token_id]
    turn.reply = Reply(tokens, [-0.5] * len(tokens), StopReason.EOS)
    turn.delivered = True
    said: dict[str, Any] = {"role": "assistant", "content": None}
    said["tool_calls"] = [CALL | {"function": {"name": "add", "arguments": '{"a": 1}'}}]
    log.answered(ASKED, asked.token_ids, said)
    return log


def test_a_tool_s_answer_follows_the_sampled_tokens_of_its_call(tiny_model_dir: Path) -> None:
    log = log_with_a_call(tiny_model_dir)
    called = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    asked = log.encode([*ASKED, called, ANSWER], [])
    following, context = asked.token_ids, log.turns[0].context
    assert following[: len(context)] == context and len(following) > len(context)
    second = log.begin(asked)
    second.reply, second.delivered = Reply([5], [-1.0], StopReason.LENGTH), True
    (row,) = log.episodes({"uid": "row"}, 0)
    assert row.mask == [1] * 5 + [0] * (len(following) - len(context)) + [1]
    assert row.response_ids == [*following[len(log.turns[0].prompt) :], 5]


def test_an_edited_reply_begins_another_row(tiny_model_dir: Path) -> None:
    log = log_with_a_call(tiny_model_dir)
    edited = {"role": "assistant", "content": "It is three."}
    turn = log.begin(log.encode([*ASKED, edited, {"role": "user", "content": "sure?"}], []))
    assert turn.former is None
    turn.reply, turn.delivered = Reply([5], [-1.0], StopReason.LENGTH), True
    assert len(log.rows()) == 2


def test_a_row_of_several_requests_has_the_experts_by_which_each_token_was_drawn(
    tiny_model_dir: Path,
) -> None:
    log = log_with_a_call(tiny_model_dir)
    first = log.turns[0]
    assert first.reply is not None
    first.reply.routing = np.zeros((len(first.context) - 1, 1, 2), np.uint8)
    called = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    asked = log.encode([*ASKED, called, ANSWER], [])
    following = asked.token_ids
    second = log.begin(asked)
    # The whole context was read again.
    again = np.ones((len(following), 1, 2), np.uint8)
    second.reply = Reply([5], [-1.0], StopReason.LENGTH, routing=again)
    second.delivered = True
    (row,) = log.episodes({"uid": "row"}, 0)
    assert row.routing is not None
    drawn = [0] * (len(first.context) - 1) + [1] * (len(following) - len(first.context) + 1)
    assert row.routing[:, 0, 0].tolist() == drawn
    assert len(row.routing) == len(row.context) - 1
