"""What a retrieval server may do, and what the tool then says; and the server that comes with the
project."""

import json
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from rl_core.envs.tools.search import SearchToolGroup, search_clients
from rl_core.envs.tools.search_server import Corpus, build_app
from rl_core.errors import DataError


def ask(url: str, query: str | None, **settings: Any) -> str:
    group = SearchToolGroup(url, **{"timeout": 5.0, **settings})
    try:
        return json.loads(group.search(query))["result"]
    finally:
        group.close()


@pytest.mark.parametrize(
    ("query", "said", "why"),
    [
        ("status 500", "Search error: HTTP 500", "an error of the server"),
        ("status 502", "Search error: HTTP 502", "a gateway"),
        ("status 503", "Search error: HTTP 503", "an overloaded server"),
        ("status 404", "Search error: HTTP 404", "a wrong address"),
        ("status 422", "topk is too large", "the server's own reason"),
        ("status 301", "Search error: HTTP 301", "a redirect is not followed"),
        ("garbage", "Search error: the answer is not", "no JSON"),
        ("blank", "Search error: the answer is not", "no body"),
        ("hang", "Search error: the answer is not", "half of a JSON"),
        ("shape", "Search error: the answer is not", "another shape"),
        ("null", "Search error: the answer is not", "nothing in JSON"),
        ("odd", "Search error: the answer is not", "documents of another shape"),
        ("deep", "Search error: the answer is not", "brackets a parser could drown in"),
        ("huge", "Search error: the answer has more than", "an answer without end"),
        ("empty", "No search results found.", "no documents"),
        ("none", "No search results found.", "no results at all"),
        ("number", "Doc 1: 7", "contents that are no text"),
        ("", "Search error: the query is empty", "an empty query"),
        ("  ", "Search error: the query is empty", "a blank query"),
        (None, "Search error: the query is empty", "no query"),
        ("\ud800", "Doc 1", "half a character"),
    ],
)  # fmt: skip
def test_whatever_the_server_does_the_model_is_told(
    search_url: str, query: str | None, said: str, why: str
) -> None:
    assert said in ask(search_url, query, max_tries=2), why


def test_a_dead_server_is_tried_again_and_then_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    started = time.monotonic()
    assert "Search error: the server cannot be reached" in ask(
        f"http://127.0.0.1:{port}/x", "q", max_tries=3
    )
    assert time.monotonic() - started >= 0.3, "two pauses lie between three tries"


@pytest.mark.parametrize(
    "url", ["http://", "nonsense", "ftp://127.0.0.1/x", "http://127.0.0.1:99999/x"]
)
def test_an_address_that_is_none_is_reported(url: str) -> None:
    assert "Search error" in ask(url, "q", max_tries=1)


@pytest.mark.parametrize("query", ["slow", "drip"])
def test_a_deadline_is_kept_for_all_tries_together(search_url: str, query: str) -> None:
    started = time.monotonic()
    assert "did not answer in time" in ask(search_url, query, timeout=0.4, max_tries=5)
    assert time.monotonic() - started < 2.5


def test_a_server_that_recovers_is_asked_again(search_url: str) -> None:
    assert "Doc 1: Paris" in ask(search_url, "flaky 3", max_tries=3)


def test_connections_are_shared_and_end_with_their_last_user(search_url: str) -> None:
    first, second = SearchToolGroup(search_url), SearchToolGroup(search_url)
    assert first._client.value is second._client.value
    client = first._client.value._http
    first.close()
    assert not client.is_closed
    second.close()
    assert client.is_closed and search_url not in search_clients._in_use
    assert not [thread for thread in threading.enumerate() if "httpx" in thread.name]


CORPUS = [
    {"id": "a", "contents": "Paris is the capital of France."},
    {"title": "Bern", "text": "Bern is the seat of the Swiss government."},
    {"contents": "Bread is baked from flour."},
]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    path.write_text("\n\n".join(json.dumps(line) for line in CORPUS), encoding="utf-8-sig")
    return path


def test_the_embedded_server_finds_the_best_document_first(corpus: Path) -> None:
    index = Corpus.read(corpus)
    assert [document["id"] for document, _ in index.search("capital of France", 3)] == ["a"]
    assert index.search("Swiss government", 1)[0][0]["contents"].startswith("Bern\n")
    assert (
        index.search("quantum", 3) == []
        and index.search("", 3) == []
        and index.search("the of", 3) == []
    )
    assert len(index.search("capital bread seat", 99)) == 3


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"corpus\.jsonl:2: not JSON"), ("[1]", r"corpus\.jsonl:2: expected an object"),
        ('{"contents": 5}', r"corpus\.jsonl:2 field contents"), ('{"title": "x"}', r"corpus\.jsonl:2 field contents"),
        ('{"contents": " "}', r"corpus\.jsonl:2 field contents"),
    ],
)  # fmt: skip
def test_a_line_that_is_no_document_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"contents": "x"}\n' + line)
    with pytest.raises(DataError, match=message):
        Corpus.read(path)


def test_an_empty_or_missing_corpus_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(DataError, match="no documents"):
        Corpus.read(tmp_path / "empty.jsonl")
    with pytest.raises(DataError, match="cannot be read"):
        Corpus.read(tmp_path / "none.jsonl")


@pytest.mark.parametrize(
    ("request_body", "status"),
    [
        ({"query": "France"}, 200), ({"queries": ["France", "Bern"], "topk": 1, "return_scores": False}, 200),
        ({"query": "France", "unknown": 1}, 200), ({}, 422), ({"query": "a", "queries": ["b"]}, 422),
        ({"query": "a", "topk": 0}, 422), ({"query": 5}, 422), ([], 422), ({"queries": ["x"] * 300}, 422),
    ],
)  # fmt: skip
def test_requests_good_and_bad(corpus: Path, request_body: Any, status: int) -> None:
    import asyncio

    transport = httpx.ASGITransport(app=build_app(Corpus.read(corpus)))

    async def post() -> httpx.Response:
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            return await client.post("/retrieve", json=request_body)

    response = asyncio.run(post())
    assert response.status_code == status
    if status == 200:
        assert "France" in response.json()["result"][0][0]["document"]["contents"]
        assert ("score" in response.json()["result"][0][0]) == request_body.get(
            "return_scores", True
        )


def test_the_command_serves_the_environment(corpus: Path) -> None:
    command = [
        sys.executable,
        "-c",
        "from flows.cli import main; main()",
        "serve-search",
        str(corpus),
        "--port",
        "0",
    ]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        url = line.split()[-1]
        assert url.startswith("http://127.0.0.1:"), (line, server.poll())
        assert ask(
            url, "Where does the Swiss government sit?", timeout=30.0, max_tries=5
        ).startswith("Doc 1: Bern")
    finally:
        server.terminate()
        server.communicate(timeout=30)


def test_a_taken_port_and_a_missing_corpus_end_the_command_with_a_reason(
    corpus: Path, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        for path, options, reason in (
            (corpus, ["--port", port], "cannot listen"),
            (tmp_path / "no", [], "cannot be read"),
        ):
            command = [
                sys.executable,
                "-c",
                "from flows.cli import main; main()",
                "serve-search",
                str(path),
                *options,
            ]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
            assert done.returncode == 2 and reason in done.stderr and "Traceback" not in done.stderr
