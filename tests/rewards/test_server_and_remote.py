"""The reward server and its client, over real HTTP on this machine."""

import base64
import contextlib
import json
import math
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest
import uvicorn
import yaml
from PIL import Image

from rl_core.rewards import Modality, Sample, Scorer, Unscored, reward_scorers
from rl_core.rewards.protocol import read_answer
from rl_core.rewards.server import build_app
from rl_core.rewards.service import RewardService
from schemas.sections.rewards import RewardServiceConfig

REPOSITORY = Path(__file__).resolve().parents[2]
BLOCKS = [
    {"name": "math", "weight": 2.0},
    {"name": "colour", "weight": 1.0},
    {"name": "length", "weight": 0.0, "max_length": 10, "buffer": 5},
]
QUICK = RewardServiceConfig(backoff_s=0.0)


class FrameCount(Scorer):
    """How many frames arrived."""

    modalities = frozenset({Modality.VIDEO})

    def score(self, samples: Sequence[Sample]) -> Sequence[float | Unscored]:
        return [float(len(sample.frames)) for sample in samples]


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """Serves reward blocks on a free port; ends with the test."""
    running: list[tuple[uvicorn.Server, threading.Thread, socket.socket]] = []

    def start(blocks: list[dict[str, Any]]) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(
            uvicorn.Config(build_app(RewardService(blocks, QUICK)), log_level="warning")
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        running.append((server, thread, listener))
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for server, thread, listener in running:
        server.should_exit = True
        thread.join(20)
        listener.close()


def ask(samples: list[Sample], **block: Any) -> list[float | Unscored]:
    """What a remote reward says."""
    cls, config = reward_scorers.resolve({"name": "remote", **block}, "rewards.0")
    scorer = cls(config)
    try:
        return list(scorer.score(samples))
    finally:
        scorer.close()


def sample(prompt: str, reply: str, colour: str | None = "red", truth: Any = "4") -> Sample:
    image = None if colour is None else Image.new("RGB", (8, 8), colour)
    return Sample(prompt, (reply,), image=image, ground_truth=truth, num_tokens=20)


def test_a_remote_reward_is_what_the_scorer_says_itself(serve: Callable[..., str]):
    url = serve(BLOCKS)
    samples = [
        sample("red 2+2?", r"\boxed{4}"),
        sample("blue 2+2?", r"\boxed{5}"),
        sample("2+2?", r"\boxed{4}"),
    ]
    local = RewardService(BLOCKS, QUICK).score_samples(samples)
    math_scores = ask(samples, url=url, reward="math")
    assert math_scores == local.by_key["math"].scores == [1.0, 0.0, 1.0]
    colours = ask(samples, url=f"{url}/score", reward="colour")
    # JPEG changes pixels a little.
    assert colours[:2] == pytest.approx(local.by_key["colour"].scores[:2], abs=0.02)
    assert isinstance(colours[2], Unscored)
    assert "must name one colour" in colours[2].reason
    total = ask(samples, url=url)
    assert total[0] == pytest.approx(2.0 * 1.0 + 1.0, abs=0.02)
    assert isinstance(total[2], Unscored)
    assert total[2].reason.startswith("colour: ")


def test_videos_travel_as_frames(serve: Callable[..., str]):
    url = serve([{"target": f"{__name__}:FrameCount"}])
    frames = (Image.new("RGB", (4, 4)), Image.new("RGB", (4, 4)), Image.new("RGB", (4, 4)))
    assert ask([Sample("a video", frames=frames)], url=url) == [3.0]


def test_the_contract_on_the_wire(serve: Callable[..., str]):
    url = serve(BLOCKS[:2])
    body = {
        "samples": [
            {"prompt": "red", "replies": [r"\boxed{4}"], "images": ["nonsense"], "ground_truth": 4}
        ]
    }
    answer = httpx.post(f"{url}/score", json=body)
    assert answer.status_code == 200
    found = json.loads(answer.text)
    assert found["rewards"]["math"]["errors"][0].startswith("not a JPEG picture in base64")
    assert math.isnan(found["rewards"]["math"]["scores"][0])
    assert "NaN" in answer.text
    png = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
    body["samples"].append(
        {"prompt": "red", "replies": [r"\boxed{4}"], "images": [png], "ground_truth": 4}
    )
    body["samples"].append({"prompt": "2+2?", "replies": [r"\boxed{4}"], "ground_truth": 4})
    found = json.loads(httpx.post(f"{url}/score", json={**body, "rewards": ["math"]}).text)
    assert list(found["rewards"]) == ["math"]
    assert found["rewards"]["math"]["scores"][2] == found["total"]["scores"][2] / 2 == 1.0
    assert httpx.get(f"{url}/health").json() == {
        "status": "ok",
        "rewards": {"math": 2.0, "colour": 1.0},
    }
    assert httpx.post(f"{url}/score", json={"samples": [], "rewards": ["clip"]}).status_code == 404
    assert httpx.post(f"{url}/score", json={"samples": [{"promt": "x"}]}).status_code == 422
    assert httpx.post(f"{url}/score", json={"samples": []}).json()["total"]["scores"] == []


class Scripted(BaseHTTPRequestHandler):
    """Answers what the test wrote down, in turn; the last answer again and again."""

    answers: ClassVar[list[tuple[int, str]]] = []

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        code, body = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self.send_response(code)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Silence."""


@pytest.fixture
def scripted() -> Iterator[Callable[..., RewardService]]:
    """A service with one remote reward, whose server says what it is told to."""
    server = HTTPServer(("127.0.0.1", 0), Scripted)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()

    def start(*answers: tuple[int, str]) -> RewardService:
        Scripted.answers = list(answers)
        url = f"http://127.0.0.1:{server.server_port}"
        return RewardService([{"name": "remote", "url": url, "timeout_s": 20}], QUICK)

    yield start
    server.shutdown()
    thread.join(20)
    server.server_close()


def total(*scores: Any) -> str:
    return json.dumps({"total": {"scores": list(scores), "errors": [None] * len(scores)}})


def test_a_server_that_recovers_is_asked_again(scripted: Callable[..., RewardService]):
    service = scripted((503, "busy"), (200, "not json"), (200, total(0.5)))
    found = service.score_samples([sample("a", "b")]).by_key["remote"]
    assert (found.scores, found.num_retried) == ([0.5], 1)
    service.close()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((500, "out of memory"), "answered 500"),
        ((200, "[]"), "has no scores of 'total'"),
        ((200, "{}"), "has no scores of 'total'"),
        ((200, total(1.0, 2.0)), "2 scores"),
        ((200, total("NaN")), "NaN without a reason"),
        ((200, total(None)), "NaN without a reason"),
    ],
)
def test_a_bad_answer_marks_the_samples_with_its_reason(
    scripted: Callable[..., RewardService], answer: tuple[int, str], reason: str
):
    import re

    service = scripted(answer)
    found = service.score_samples([sample("a", "b")]).by_key["remote"]
    assert math.isnan(found.scores[0])
    assert re.search(reason, str(found.errors[0])), found.errors
    service.close()


class Endless(BaseHTTPRequestHandler):
    """Sends a body without end, or sends the caller elsewhere."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.startswith("/moved"):
            self.send_response(307)
            self.send_header("Location", "http://127.0.0.1:1/score")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.end_headers()
        with contextlib.suppress(OSError):
            while True:
                self.wfile.write(b" " * 2**16)

    def log_message(self, *_: object) -> None:
        """Silence."""


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("", "AnswerTooLong: the answer has more than 1048576 bytes"),
        ("moved", "a redirect to http://127.0.0.1:1/score, which is not followed"),
    ],
)
def test_an_endless_answer_and_a_redirect_mark_the_samples(
    path: str, reason: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("rl_core.rewards.posting.MAX_ANSWER_BYTES", 2**20)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Endless)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}/{path}"
    service = RewardService([{"name": "remote", "url": url}], QUICK)
    found = service.score_samples([sample("a", "b")]).by_key["remote"]
    service.close()
    server.shutdown()
    thread.join()
    server.server_close()
    assert math.isnan(found.scores[0]) and reason in str(found.errors[0])


def test_rewards_that_are_no_mapping_have_no_scores():
    with pytest.raises(ValueError, match="has no scores of 'math'"):
        read_answer({"rewards": []}, "math", 1)


def test_a_dead_server_marks_the_samples():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    service = RewardService([{"name": "remote", "url": f"http://127.0.0.1:{port}"}], QUICK)
    found = service.score_samples([sample("a", "b")] * 3).by_key["remote"]
    assert all(map(math.isnan, found.scores))
    assert "ConnectError" in str(found.errors[0])
    service.close()


def test_the_command_serves_the_rewards_of_a_recipe(tmp_path: Path):
    path = tmp_path / "rewards.yaml"
    path.write_text(
        yaml.safe_dump({"rewards": [{"name": "math"}], "reward_service": {"max_tries": 1}})
    )
    command = [sys.executable, "-u", "-m", "flows.cli", "serve-rewards", str(path), "--port", "0"]
    process = subprocess.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("serving math; use them as {name: remote, url: http://127.0.0.1:"), (
            line
        )
        url = line.rpartition("url: ")[2].strip().rstrip("}")
        deadline = time.monotonic() + 60
        while True:
            try:
                assert ask([sample("2+2?", r"\boxed{4}")], url=url, reward="math") == [1.0]
                answer = httpx.post(f"{url}/score", json={})
                assert answer.status_code == httpx.codes.UNAUTHORIZED, "it asks for the home's key"
                break
            except httpx.TransportError:
                assert time.monotonic() < deadline
                time.sleep(0.1)
    finally:
        process.terminate()
        process.communicate(timeout=30)


@pytest.mark.parametrize(
    "content", [{}, {"rewards": []}, {"rewards": ["math"]}, {"rewards": [{"name": "maths"}]}]
)
def test_a_file_without_rewards_is_refused(tmp_path: Path, content: dict[str, Any]):
    from flows.commands.serve import serve_rewards
    from rl_core.errors import RecipeError

    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(RecipeError, match="reward"):
        serve_rewards(path, port=0)
