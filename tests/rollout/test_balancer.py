"""Requests over several vLLM servers of somebody else: shares, contexts that were read before, and
servers that fail. The servers here answer as vLLM's do; `make test-vllm` runs real ones."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from rl_core.errors import RecipeError, Unreachable, WeightMismatch, WorkerError
from rl_core.models.export.checksums import Checksum, checksum
from rl_core.rollout.servers.balancer import BalancedServers
from rl_core.rollout.servers.served import WEIGHTS
from rl_core.rollout.servers.vllm import ServedVllm
from rl_core.rollout.vllm_process.server import Names, Prompt
from schemas.sections.sampling import SamplingConfig

LENGTH = 4096


class Standing:
    """A server that replies with the first token of each prompt, once it may."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.loaded: list[str] = []
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.status, self.room = 200, LENGTH
        self.process: str | None = "first"
        self.fails_after, self.finish = LENGTH, "length"
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if self.path.startswith("/server_info"):
                    config = {} if outer.process is None else {"instance_id": outer.process}
                    self._say(outer.status, {"vllm_config": config})
                    return
                self._say(200, {"data": [{"id": "model", "max_model_len": outer.room}]})

            def do_POST(self) -> None:
                text = self.rfile.read(int(self.headers["Content-Length"] or 0))
                if self.path == "/v1/completions":
                    body = json.loads(text)
                    outer.asked.append(body)
                    outer.may_answer.wait(30)
                    fails = len(outer.asked) > outer.fails_after
                    self._say(
                        500 if fails else outer.status,
                        {"choices": [choice(body, i, outer.finish) for i in range(body["n"])]},
                    )
                    return
                if self.path == "/collective_rpc":
                    outer.loaded.append(json.loads(text)["kwargs"]["weights_path"])
                self._say(outer.status, {})

            def _say(self, status: int, said: object) -> None:
                text = json.dumps(said).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def tokens(self) -> int:
        """That it was asked to read and to write."""
        return sum(len(one["prompt"]) + one["n"] * one["max_tokens"] for one in self.asked)

    def close(self) -> None:
        self.may_answer.set()
        self._server.shutdown()
        self._server.server_close()


def choice(body: dict[str, Any], index: int, finish: str) -> dict[str, Any]:
    return {
        "index": index,
        "token_ids": [body["prompt"][0], index],
        "finish_reason": finish,
        "stop_reason": None,
        "logprobs": {"token_logprobs": [-0.5, -0.25]},
    }


Start = Callable[[int], list[Standing]]
Over = Callable[[list[Standing]], BalancedServers]


@pytest.fixture
def servers() -> Iterator[Start]:
    running: list[Standing] = []

    def start(number: int) -> list[Standing]:
        running.extend(Standing() for _ in range(number))
        return running

    yield start
    for one in running:
        one.close()


@pytest.fixture
def balanced(tmp_path: Path) -> Iterator[Over]:
    made: list[BalancedServers] = []
    weights = str(tmp_path / "sent.safetensors")
    save_file({"w": torch.arange(6.0)}, weights)

    def over(running: list[Standing]) -> BalancedServers:
        folder = tmp_path / "folder"
        members = [ServedVllm(one.url, folder, {}, weights, LENGTH, 30.0) for one in running]
        made.append(BalancedServers(members))
        made[-1].begin()
        return made[-1]

    yield over
    for one in made:
        one.close()


def prompt(first: int, length: int = 8, replies: int = 2, limit: int = 4) -> Prompt:
    """One that no other begins like. Args: limit: most tokens of a reply."""
    return Prompt([first] * length, replies, limit, seed=first)


def ask(balanced: BalancedServers, prompts: list[Prompt]) -> list[list[int]]:
    drawn = balanced.generate(prompts, 1.0, [0], SamplingConfig())
    return [one.token_ids for one in drawn]


def expected(prompts: list[Prompt]) -> list[list[int]]:
    return [[one.token_ids[0], index] for one in prompts for index in range(one.num_replies)]


def sums() -> dict[Names, Checksum]:
    return {("w",): checksum(torch.arange(6.0))}


def test_requests_are_dealt_by_tokens_and_answered_in_order(servers: Start, balanced: Over):
    running = servers(3)
    for one in running:
        one.may_answer.clear()
    sizes = [*range(1, 40)]
    prompts = [prompt(size, length=8 * size, limit=size) for size in sizes]
    over, found = balanced(running), list[list[list[int]]]()
    asking = threading.Thread(target=lambda: found.append(ask(over, prompts)))
    asking.start()
    for _ in range(3000):
        if sum(len(one.asked) for one in running) == len(prompts):
            break
        threading.Event().wait(0.01)
    for one in running:
        one.may_answer.set()
    asking.join(30)
    assert found == [expected(prompts)]
    largest = max(len(one.token_ids) + one.num_replies * one.max_new_tokens for one in prompts)
    shares = [one.tokens for one in running]
    assert max(shares) - min(shares) <= largest, shares


def test_the_next_turn_goes_where_its_context_was_read(servers: Start, balanced: Over):
    running = servers(3)
    over = balanced(running)
    turns = [prompt(first, length=160) for first in range(1, 7)]
    for turn in range(4):
        # One by one, in another order each time: nothing is in flight, so only the context decides.
        for one in turns if turn % 2 else reversed(turns):
            ask(over, [one])
        turns = [Prompt([*one.token_ids, 90, 91, 92], 2, 4, one.seed) for one in turns]
    firsts = [{body["prompt"][0] for body in one.asked} for one in running]
    assert sum(map(len, firsts)) == 6, "a conversation was read by two servers"


def test_a_long_queue_outweighs_what_was_read_before(servers: Start, balanced: Over):
    running = servers(2)
    over = balanced(running)
    context = prompt(1, length=64)
    ask(over, [context])
    (reader,) = (one for one in running if one.asked)
    siblings = [Prompt([*context.token_ids, more], 1, 200, 0) for more in range(30)]
    for one in running:
        one.may_answer.clear()
    asking = threading.Thread(target=ask, args=(over, siblings))
    asking.start()
    for _ in range(3000):
        if sum(len(one.asked) for one in running) == 31:
            break
        threading.Event().wait(0.01)
    for one in running:
        one.may_answer.set()
    asking.join(30)
    assert 12 <= len(reader.asked) <= 20


def test_new_weights_are_told_of_no_context(servers: Start, balanced: Over):
    """What a server read with the old weights draws no further request to it."""
    running = servers(2)
    over = balanced(running)
    for one in running:
        one.may_answer.clear()
    contexts = [prompt(first, length=160) for first in (1, 2)]
    asking = threading.Thread(target=ask, args=(over, contexts))
    asking.start()
    for one in running:
        while not one.asked:
            threading.Event().wait(0.01)
        one.may_answer.set()
    asking.join(30)
    (first_of_second,) = {body["prompt"][0] for body in running[1].asked}
    ask(over, [contexts[first_of_second - 1]])
    assert len(running[1].asked) == 2
    over.reload(sums(), "float32", "here")
    ask(over, [contexts[first_of_second - 1]])
    assert len(running[1].asked) == 2, "it was sent on to the server that had read it"


@pytest.mark.parametrize("how", ["answers 500", "is gone", "gives up"])
def test_what_a_failing_server_was_asked_goes_to_the_others(
    servers: Start, balanced: Over, caplog: pytest.LogCaptureFixture, how: str
):
    running = servers(3)
    over = balanced(running)
    if how == "gives up":
        running[1].finish = "abort"  # with the tokens so far
    else:
        running[1].status = 500
    if how == "is gone":
        running[1].close()
    prompts = [prompt(first) for first in range(1, 31)]
    assert ask(over, prompts) == expected(prompts)
    assert caplog.text.count("the others sample in its place") == 1
    assert running[1].url in caplog.text
    before = len(running[1].asked)
    over.begin()
    assert ask(over, prompts) == expected(prompts)
    assert len(running[1].asked) == before, "it has the weights of before"
    assert over.num_left_out() == 1
    if how == "answers 500":
        running[1].status = 200
        over.reload(sums(), "float32", "here")
        assert ask(over, prompts) == expected(prompts)
        assert len(running[1].asked) > before and over.num_left_out() == 0


def test_a_server_that_is_away_at_the_start_is_done_without(servers: Start, balanced: Over):
    running = servers(2)
    running[0].close()
    over = balanced(running)
    assert over.num_left_out() == 1
    assert ask(over, [prompt(1), prompt(2)]) == expected([prompt(1), prompt(2)])
    running[1].close()
    with pytest.raises(Unreachable, match="does not answer"):
        balanced(running)


def test_a_server_with_too_little_room_is_refused(servers: Start, balanced: Over):
    running = servers(2)
    running[1].room = LENGTH - 1
    with pytest.raises(RecipeError, match=f"{running[1].url} takes {LENGTH - 1} tokens"):
        balanced(running)


def test_without_a_server_left_each_says_why(servers: Start, balanced: Over):
    running = servers(2)
    over = balanced(running)
    for one in running:
        one.status = 503
    with pytest.raises(Unreachable, match=r"no server of rollout\.server\.urls is left") as said:
        ask(over, [prompt(1)])
    assert all(f"{one.url}/v1/completions answered 503" in str(said.value) for one in running)
    with pytest.raises(Unreachable, match="is left"):
        over.reload(sums(), "float32", "here")
    for one in running:
        one.status = 200
    over.reload(sums(), "float32", "here")
    assert ask(over, [prompt(1)]) == expected([prompt(1)])


def test_a_request_that_is_wrong_takes_no_server_out(servers: Start, balanced: Over):
    running = servers(2)
    over = balanced(running)
    for one in running:
        one.status = 400
    with pytest.raises(WorkerError, match="answered 400"):
        ask(over, [prompt(1)])
    for one in running:
        one.status = 200
    assert ask(over, [prompt(1)]) == expected([prompt(1)])


def test_weights_are_written_once_and_loaded_by_all(servers: Start, balanced: Over, tmp_path: Path):
    running = servers(3)
    over = balanced(running)
    over.reload(sums(), "float32", "here")
    folder = tmp_path / "folder"
    assert [one.loaded for one in running] == [[str(folder)]] * 3
    assert torch.equal(load_file(folder / WEIGHTS)["w"], torch.arange(6.0))
    with pytest.raises(WeightMismatch):
        over.reload({("w",): checksum(torch.arange(6.0) + 1)}, "float32", "here")
    assert [len(one.loaded) for one in running] == [1, 1, 1]


def test_replies_come_one_by_one_and_what_is_given_up_is_forgotten(
    servers: Start, balanced: Over
) -> None:
    running = servers(2)
    over = balanced(running)
    for one in running:
        one.may_answer.clear()
    given = 1.0, [0], SamplingConfig()
    over.put({number: prompt(number, replies=1) for number in range(1, 5)}, *given)
    assert over.advance([]) == {}
    running[0].may_answer.set()
    first: dict[int, list[int]] = {}
    while len(first) < 2:
        first |= {number: one.token_ids for number, one in over.advance([]).items()}
    over.put({5: prompt(5, replies=1)}, *given)
    (given_up, kept) = sorted({1, 2, 3, 4} - set(first))
    rest = {number: one.token_ids for number, one in over.advance([given_up]).items()}
    running[1].may_answer.set()
    while len(first) + len(rest) < 4:
        rest |= {number: one.token_ids for number, one in over.advance([]).items()}
    assert set(first) | set(rest) == {1, 2, 3, 4, 5} - {given_up} and kept in rest
    assert all(token_ids == [number, 0] for number, token_ids in (first | rest).items())
    over.put({6: prompt(6, replies=1)}, *given)
    for one in running:
        one.status = 503
    over.put({7: prompt(7, replies=1)}, *given)
    with pytest.raises(Unreachable, match="is left"):
        while True:
            over.advance([])


def test_a_server_that_was_started_again_loads_the_weights_before_a_rollout(
    servers: Start, balanced: Over, caplog: pytest.LogCaptureFixture
) -> None:
    running = servers(2)
    over = balanced(running)
    over.reload(sums(), "float32", "here")
    running[1].process = "second"
    over.begin()
    over.begin()
    assert [len(one.loaded) for one in running] == [1, 2]
    assert caplog.text.count(f"{running[1].url} was started again") == 1


@pytest.mark.parametrize("together", [True, False])
def test_what_a_server_sampled_with_its_first_weights_is_sampled_again(
    servers: Start, balanced: Over, together: bool
) -> None:
    running = servers(2)
    over = balanced(running)
    over.reload(sums(), "float32", "here")
    over.begin()
    prompts = [prompt(number, replies=1) for number in range(1, 9)]
    # Both, so that each is asked for as many: one that answers is asked for more.
    for one in running:
        one.may_answer.clear()
    given = 1.0, [0], SamplingConfig()
    found: dict[int, list[int]] = {}

    def answered() -> None:
        if together:
            drawn = over.generate(prompts, *given)
            found.update((number, one.token_ids) for number, one in enumerate(drawn))
            return
        over.put(dict(enumerate(prompts)), *given)
        while len(found) < len(prompts):
            found.update((number, one.token_ids) for number, one in over.advance([]).items())

    asking = threading.Thread(target=answered)
    asking.start()
    end = time.monotonic() + 20
    while sum(len(one.asked) for one in running) < len(prompts) and time.monotonic() < end:
        time.sleep(0.01)
    before = len(running[0].asked)
    assert before == 4
    # As if it had been away and come back before it was asked.
    running[0].process = "second"
    for one in running:
        one.may_answer.set()
    asking.join(30)
    assert found == {number: one for number, one in enumerate(expected(prompts))}
    assert len(running[0].loaded) == 2 and len(running[1].loaded) == 1
    asked = [body["prompt"][0] for one in running for body in one.asked]
    assert len(asked) == len(prompts) + before and set(asked) == set(range(1, 9))


def test_a_server_that_does_not_say_which_process_it_is_is_refused(
    servers: Start, balanced: Over
) -> None:
    running = servers(1)
    over = balanced(running)
    running[0].process = None
    with pytest.raises(RecipeError, match="names no instance_id"):
        over.reload(sums(), "float32", "here")


def test_what_a_server_answered_before_it_failed_is_asked_of_the_others(
    servers: Start, balanced: Over
) -> None:
    running = servers(2)
    over = balanced(running)
    over.reload(sums(), "float32", "here")
    over.begin()
    running[0].fails_after = 2
    prompts = [prompt(number) for number in range(1, 17)]
    assert ask(over, prompts) == expected(prompts)
    assert over.num_left_out() == 1
    assert {body["prompt"][0] for body in running[1].asked} == set(range(1, 17))
