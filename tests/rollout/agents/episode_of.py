"""An episode of an environment, played by a policy that says what a test tells it to."""

import threading
from collections.abc import Callable, Mapping
from typing import Any

from rl_core.envs.agent import AgentEnv
from rl_core.envs.registration import make
from rl_core.rollout.agents.processes import AgentProcesses, Ended
from tests.chat_server import Server

Say = Callable[[list[dict[str, Any]]], Any]
"""Returns the policy's reply to a conversation: its text, or a whole message."""


def answer_of(say: Say) -> Callable[[dict[str, Any]], tuple[int, Any]]:
    """The answer of a server whose policy says that."""

    def answer(body: dict[str, Any]) -> tuple[int, Any]:
        reply = say(body["messages"])
        message = reply if isinstance(reply, dict) else {"content": reply}
        choice = {
            "index": 0,
            "finish_reason": "tool_calls" if message.get("tool_calls") else "stop",
            "message": {"role": "assistant", **message},
        }
        said = {"id": "x", "object": "chat.completion", "created": 1, "model": "policy"}
        return 200, said | {"choices": [choice]}

    return answer


def episodes(
    options: Mapping[str, Any], rows: list[Mapping[str, Any]], say: Say
) -> tuple[list[Ended], list[dict[str, Any]]]:
    """Play rows. Returns: how each ended, and the requests to the policy."""
    env = make("tried", dict(options), {})
    assert isinstance(env, AgentEnv)
    # Before the server, whose thread would outlive a failure here and keep pytest from ending.
    processes = AgentProcesses("tried", env.config)
    server = Server(answer_of(say))
    ended: dict[int, Ended] = {}
    changed = threading.Condition()

    def end(number: int, how: Ended) -> None:
        with changed:
            ended[number] = how
            changed.notify_all()

    try:
        for number, row in enumerate(rows):
            order = {"row": dict(row), "url": server.url, "key": "mine", "seed": number}
            processes.start(number, order, lambda how, number=number: end(number, how))
        with changed:
            changed.wait_for(lambda: len(ended) == len(rows), timeout=120)
        return [ended[number] for number in range(len(rows))], server.requests
    finally:
        processes.close()
        server.close()
