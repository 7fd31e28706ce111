"""A model behind a server is played like any other: environments, several samples, refusals."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rl_core.errors import ServiceError, Unreachable
from rl_core.evaluation.served import KEY_VARIABLE, Served
from schemas.sections.evaluation_sets import SampledReplies
from tests.chat_server import Answer, Server, said


def item(question: str, truth: str, env_class: str = "gsm8k") -> dict[str, Any]:
    return {
        "uid": question,
        "env_class": env_class,
        "prompt": [{"role": "user", "content": question}],
        "env_extras": {"reward_spec": {"ground_truth": truth}, "data_source": "sums"},
    }


ITEMS = [item("1+2", "3"), item("2+2", "4")]


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], Server]]:
    servers: list[Server] = []

    def start(answer: Answer) -> Server:
        servers.append(Server(answer))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def three(body: dict[str, Any]) -> tuple[int, Any]:
    return said("It is #### 3", "stop" if body["messages"][-1]["content"] == "1+2" else "length")


def test_replies_are_graded_by_their_environments(
    serve: Callable[[Answer], Server], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(KEY_VARIABLE, "secret")
    server = serve(three)
    rows = Served(server.url, "tiny").play(ITEMS, 32, None)
    assert [row["reward"] for row in rows] == [1.0, 0.0]
    assert [row["answer"] for row in rows] == ["3", "3"]
    assert [row["stop_reason"] for row in rows] == ["eos", "length"]
    assert [row["num_tokens"] for row in rows] == [5, 5]
    assert rows[0]["sample_id"] == "prompt:1+2:sample:0"
    request = next(one for one in server.requests if one["messages"][0]["content"] == "1+2")
    assert (request["model"], request["max_tokens"], request["temperature"]) == ("tiny", 32, 0.0)
    assert "top_p" not in request and server.keys[0] == "Bearer secret"


def test_several_samples_have_seeds_of_their_own(serve: Callable[[Answer], Server]):
    server = serve(three)
    choice = SampledReplies(temperature=0.7, top_p=0.9, stop=["\n"], samples=3)
    rows = Served(server.url, "tiny").play(ITEMS, 32, choice)
    assert [row["uid"] for row in rows] == ["1+2"] * 3 + ["2+2"] * 3
    assert len({request["seed"] for request in server.requests}) == 6
    assert {request["top_p"] for request in server.requests} == {0.9}
    assert {tuple(request["stop"]) for request in server.requests} == {("\n",)}


def test_several_turns_are_one_conversation(serve: Callable[[Answer], Server]):
    def answer(body: dict[str, Any]) -> tuple[int, Any]:
        return said("#### 3" if len(body["messages"]) > 1 else "#### 7")

    server = serve(answer)
    options = {"gsm8k_multi_turn": {"max_turns": 3}}
    (row,) = Served(server.url, "tiny", options).play(
        [item("1+2", "3", "gsm8k_multi_turn")], 32, None
    )
    roles = [message["role"] for message in server.requests[-1]["messages"]]
    assert roles == ["user", "assistant", "user"]
    assert (row["reward"] >= 1.0, row["num_tokens"]) == (True, 10)


def test_a_row_that_its_environment_refuses_fails_alone(serve: Callable[[Answer], Server]):
    broken = {**ITEMS[0], "env_extras": {"reward_spec": {"ground_truth": {"no": "kind"}}}}
    rows = Served(serve(three).url, "tiny").play([broken, ITEMS[1]], 32, None)
    assert math.isnan(rows[0]["reward"])
    assert rows[0]["error"].startswith("prompt:1+2:sample:0: EnvError")
    assert "error" not in rows[1]


def test_a_refusal_is_the_users_and_silence_is_not(serve: Callable[[Answer], Server]):
    refusing = serve(lambda _: (404, {"error": "no model tiny"}))
    with pytest.raises(ServiceError, match=r"refuses the request \(404\).*no model tiny"):
        Served(refusing.url, "tiny", at_once=1).play(ITEMS * 20, 32, None)
    assert len(refusing.requests) < 40, "the others are not asked"
    with pytest.raises(ServiceError, match="does not answer like an OpenAI-compatible server"):
        Served(serve(lambda _: (200, {"text": "3"})).url, "tiny").play(ITEMS, 32, None)
    busy = serve(lambda _: (503, "busy"))
    with pytest.raises(Unreachable, match="answers 503"):
        Served(busy.url, "tiny", pause_s=0).play(ITEMS[:1], 32, None)
    assert len(busy.requests) == 4


CALL = '{"a": 1, "b": 2}'


def test_tools_are_offered_and_their_calls_answered_by_id(serve: Callable[[Answer], Server]):
    def answer(body: dict[str, Any]) -> tuple[int, Any]:
        if body["messages"][-1]["role"] == "tool":
            return said(body["messages"][-2]["content"])
        code, whole = said("")
        whole["choices"][0]["message"]["tool_calls"] = [
            {"id": f"id-{at}", "type": "function", "function": {"name": "add", "arguments": CALL}}
            for at in range(2)
        ]
        return code, whole

    server = serve(answer)
    options = {"sums": {"tools": ["tests.envs.tool_env.tools_of_tests:add"], "max_turns": 3}}
    (row,) = Served(server.url, "tiny", options).play([item("1+2", "3", "sums")], 32, None)
    asked = server.requests[-1]
    assert [tool["function"]["name"] for tool in asked["tools"]] == ["add"]
    told = [one for one in asked["messages"] if one["role"] == "tool"]
    assert [(one["tool_call_id"], one["content"]) for one in told] == [("id-0", "3"), ("id-1", "3")]
    assert [call["id"] for call in asked["messages"][1]["tool_calls"]] == ["id-0", "id-1"]
    assert row["reward"] == 1.0
