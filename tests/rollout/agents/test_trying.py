"""One row that is played by whoever speaks."""

from __future__ import annotations

import threading
from typing import Any

from rl_core.rollout.agents.trying import _Conversation, try_row

ROW = {
    "prompt": [{"role": "user", "content": "12 * 34?"}],
    "reward_spec": {"method": "rule", "ground_truth": "408"},
}
TOOLS = {"tools": ["deployments.tools.calculator:calculate"], "max_turns": 3}
WRITTEN = '<tool_call>{"name": "calculate", "arguments": {"expression": "12 * 34"}}</tool_call>'


def played(options: dict[str, Any], *replies: dict[str, Any]) -> tuple[Any, list[Any], list[Any]]:
    """Play the row with these replies. Returns: the result, what was shown and the tools on
    offer."""
    shown: list[Any] = []
    on_offer: list[Any] = []
    left = iter(replies)

    def speak(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> dict[str, Any]:
        on_offer.append([one["function"]["name"] for one in tools])
        return {"role": "assistant", **next(left)}

    return try_row("tool_env", {**TOOLS, **options}, ROW, speak, shown.append), shown, on_offer


def test_a_server_is_offered_the_tools_and_its_calls_are_run() -> None:
    function = {"name": "calculate", "arguments": '{"expression": "12 * 34"}'}
    call = {"id": "c1", "type": "function", "function": function}
    tried, shown, on_offer = played({}, {"tool_calls": [call]}, {"content": "408"})
    assert (tried.reward, tried.metrics["tool_calls"]) == (1.0, 1.0), tried
    assert on_offer == [["calculate"], ["calculate"]]
    assert shown[2]["role"] == "tool" and shown[2]["tool_call_id"] == "c1"


def test_a_reply_ends_where_the_environment_ends_a_turn() -> None:
    options = {"show_tools": "system", "stop": ["</tool_call>"]}
    more = {"content": f"{WRITTEN}\nI made that up: 409"}
    tried, shown, on_offer = played(options, more, {"content": "408"})
    assert tried.reward == 1.0 and on_offer == [[], []], tried
    assert [one["content"] for one in shown[2:]] == [WRITTEN, "408", "408"]


def test_a_request_after_the_end_is_not_waited_for() -> None:
    conversation = _Conversation(lambda messages, tools: {}, lambda message: None)
    over = threading.Event()
    over.set()
    conversation.speak_until(over)
    late: list[Any] = []
    waiting = threading.Thread(target=lambda: late.append(conversation.answer({"messages": []})))
    waiting.start()
    waiting.join(10)
    assert not waiting.is_alive() and late == [None]
