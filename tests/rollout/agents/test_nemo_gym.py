"""Resources servers of NeMo Gym: a stand-in that keeps to the protocol of its public source."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from rl_core.builtin.data.environments.files import materialise_environment_rows
from rl_core.builtin.data.environments.nemo_gym import NemoGymRows
from rl_core.errors import DataError
from schemas.rows.ground_truth import ANY_GROUND_TRUTH
from schemas.rows.prompt_rows import prompt_contract
from tests.rollout.agents.episode_of import episodes

TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": True}
ROW = {
    "responses_create_params": {"input": [{"role": "user", "content": "Oslo?"}], "tools": [TOOL]},
    "wanted": "rain",
}


class Resources(BaseHTTPRequestHandler):
    """Sessions by cookie; the weather of a town; right if the last message has it."""

    sessions: dict[str, dict[str, Any]] = {}  # noqa: RUF012 - of the class: handlers live shortly

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        cookie = (self.headers["Cookie"] or "").removeprefix("session=")
        if self.path == "/seed_session":
            cookie = str(len(self.sessions))
            self.sessions[cookie] = {"calls": 0}
            self.answer({}, cookie)
        elif self.path == "/weather":
            self.sessions[cookie]["calls"] += 1
            self.answer({"weather": "rain" if body.get("town") == "Oslo" else "sun"})
        elif self.path == "/verify":
            last = body["response"]["output"][-1]
            text = last["content"][0]["text"] if last["type"] == "message" else ""
            right = body["wanted"] in text and self.sessions[cookie]["calls"] == 1
            told = {**body, "reward": float(right), "found": 0.5}
            if text == "lost":
                told |= {"mask_sample": True, "failure_reason": "the session was lost"}
            self.answer(told)

    def answer(self, said: Any, cookie: str | None = None) -> None:
        text = json.dumps(said).encode()
        self.send_response(200)
        if cookie is not None:
            self.send_header("Set-Cookie", f"session={cookie}")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Resources)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def rows(folder: Path, *source: dict[str, Any]) -> list[dict[str, Any]]:
    file = folder / "weather.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in source))
    spec = NemoGymRows(nemo_gym=str(file), env_class="weather", split="all")
    lines = materialise_environment_rows(spec, folder / "made").read_text().splitlines()
    made = [json.loads(line) for line in lines]
    assert not [
        problem
        for row in made
        for problem in prompt_contract({"weather": ANY_GROUND_TRUTH}).problems(row)
    ]
    return made


def test_tools_are_called_in_a_session_and_the_server_gives_the_verdict(
    address: str, tmp_path: Path
) -> None:
    def speak(messages: list[dict[str, Any]]) -> Any:
        if messages[-1]["role"] == "tool":
            return f"It is {json.loads(messages[-1]['content'])['weather']}."
        call = {"name": "weather", "arguments": '{"town": "Oslo"}'}
        return {"content": "", "tool_calls": [{"id": "1", "type": "function", "function": call}]}

    made = rows(tmp_path, ROW)
    ended, requests = episodes({"nemo_gym": address}, made * 2, speak)
    assert [one.reward for one in ended] == [1.0, 1.0], ended
    assert ended[0].metrics == {"found": 0.5, "tool_calls": 1.0}
    assert requests[0]["tools"][0]["function"] == {
        "name": "weather",
        "parameters": {"type": "object"},
    }
    ended, _ = episodes({"nemo_gym": address}, made, lambda messages: "rain")
    assert ended[0].reward == 0.0


def test_what_is_no_verdict_is_no_reward(address: str, tmp_path: Path) -> None:
    made = rows(tmp_path, ROW)
    ended, _ = episodes({"nemo_gym": address}, made, lambda messages: "lost")
    assert ended[0].reward is None and "the session was lost" in str(ended[0].error)
    ended, _ = episodes({"nemo_gym": "http://127.0.0.1:9"}, made, lambda messages: "rain")
    assert ended[0].reward is None and "no NeMo Gym server answers at" in str(ended[0].error)


def test_a_row_without_an_input_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"weather.jsonl:2: responses_create_params: must be"):
        rows(tmp_path, ROW, {"responses_create_params": {}})
