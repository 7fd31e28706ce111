"""A model behind a server is played like any other: environments, several samples, refusals."""

import json
import math
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from rl_core.errors import ServiceError, Unreachable
from rl_core.evaluation.served import KEY_VARIABLE, Served
from schemas.sections.evaluation_sets import SampledReplies

Answer = Callable[[dict[str, Any]], tuple[int, Any]]


def item(question: str, truth: str, env_class: str = "gsm8k") -> dict[str, Any]:
    return {
        "uid": question,
        "env_class": env_class,
        "prompt": [{"role": "user", "content": question}],
        "env_extras": {"reward_spec": {"ground_truth": truth}, "data_source": "sums"},
    }


ITEMS = [item("1+2", "3"), item("2+2", "4")]


class Server:
    """Answers as `answer` says; keeps every request with its headers."""

    def __init__(self, answer: Answer) -> None:
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.requests.append(body)
                outer.keys.append(self.headers["Authorization"])
                code, said = answer(body) if self.path == "/v1/chat/completions" else (404, "no")
                text = json.dumps(said).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], Server]]:
    servers: list[Server] = []

    def start(answer: Answer) -> Server:
        servers.append(Server(answer))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def said(text: str, reason: str = "stop", tokens: int = 5) -> tuple[int, Any]:
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": reason}
    return 200, {"choices": [choice], "usage": {"completion_tokens": tokens}}


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
        Served(refusing.url, "tiny").play(ITEMS, 32, None)
    with pytest.raises(ServiceError, match="does not answer like an OpenAI-compatible server"):
        Served(serve(lambda _: (200, {"text": "3"})).url, "tiny").play(ITEMS, 32, None)
    busy = serve(lambda _: (503, "busy"))
    with pytest.raises(Unreachable, match="answers 503"):
        Served(busy.url, "tiny", pause_s=0).play(ITEMS[:1], 32, None)
    assert len(busy.requests) == 4
