"""Properties of the contracts of preference and response rows, and of the media checks that all
contracts share."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rl_core.errors import DataError
from schemas.rows.contract import RowContract
from schemas.rows.media_checks import (
    MediaLimits,
    embedded_image_problems,
    load_image,
    open_media,
    resolve_uri,
)
from schemas.rows.preference_rows import preference_contract, preference_pair
from schemas.rows.prompt_rows import prompt_contract
from schemas.rows.response_rows import input_messages, response_contract

PAIR: dict[str, Any] = {
    "image": "a.png",
    "question": "What?",
    "chosen": "A cat.",
    "rejected": "A dog.",
}
USER = {"role": "user", "content": "2 + 2?"}


def found(contract: RowContract, row: dict[str, Any]) -> list[tuple[str, str]]:
    rejections = contract.validate([row], file="f", row_numbers=[1])
    return [(one.field, one.reason) for one in rejections]


def png(size: int = 4) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (size, size), (1, 2, 3)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize(
    "row",
    [
        PAIR,
        {**PAIR, "image": ["a.png", "b.png"]},
        {**PAIR, "image": np.array(["a.png"])},
        {
            "image": "a.png",
            "question": "What?",
            "chosen_response": "A cat.",
            "rejected_response": "A dog.",
        },
        {**PAIR, "image": "https://h/a.png", "length": 3},
    ],
)
def test_good_preference_row_is_accepted(row: dict[str, Any]) -> None:
    assert found(preference_contract(), row) == []


@pytest.mark.parametrize(
    ("changes", "field", "reason"),
    [
        ({"image": None}, "image", "missing"),
        ({"image": []}, "image", "not an image path"),
        ({"question": " "}, "question", "not a text"),
        ({"chosen": None}, "chosen", "missing"),
        ({"rejected": 3}, "rejected", "not a text"),
        ({"rejected": " A cat. "}, "rejected", "chosen and rejected are equal"),
    ],
)
def test_bad_preference_row_names_field_and_reason(
    changes: dict[str, Any], field: str, reason: str
) -> None:
    assert found(preference_contract(), {**PAIR, **changes}) == [(field, reason)]


def test_preference_pair_resolves_images_and_refuses_bad_rows(tmp_path: Path) -> None:
    pair = preference_pair({**PAIR, "image": ["a.png", "/abs/b.png"]}, folder=tmp_path, place="f:1")
    assert pair.images == (str(tmp_path / "a.png"), "/abs/b.png")
    with pytest.raises(DataError, match="f:7 field question: missing"):
        preference_pair({**PAIR, "question": None}, folder=tmp_path, place="f:7")


def test_preference_image_must_exist_and_decode_under_its_root(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png())
    assert found(preference_contract(tmp_path), PAIR) == []
    assert found(preference_contract(tmp_path), {**PAIR, "image": "b.png"}) == [
        ("image", "no such media file")
    ]


@pytest.mark.parametrize(
    "given",
    [
        "2 + 2?",
        [USER],
        [{"role": "developer", "content": "x"}, USER, {"role": "assistant", "content": "y"}],
        [{"role": "user", "content": [{"type": "input_text", "text": "x"}]}],
        [
            USER,
            {"type": "function_call", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "output": "1"},
        ],
    ],
)
def test_good_response_row_is_accepted_whatever_comes_with_it(given: Any) -> None:
    row = {
        "responses_create_params": {"input": given, "tools": []},
        "agent_ref": {"name": "x"},
        "n": 2**70,
    }
    assert found(response_contract(), row) == []


@pytest.mark.parametrize(
    ("params", "field", "reason"),
    [
        (None, "", "missing"),
        ("x", "", "not an object"),
        ({}, ".input", "missing"),
        ({"input": " "}, ".input", "empty"),
        ({"input": [3]}, ".input", "not a list of messages"),
        ({"input": [{"role": "system", "content": "x"}]}, ".input", "no user message"),
        ({"input": [USER, {"role": "robot", "content": "x"}]}, ".input[1].role", "unknown role"),
        (
            {"input": [USER, {"role": "assistant", "content": 3}]},
            ".input[1].content",
            "content is not a text or parts",
        ),
    ],
)
def test_bad_response_row_names_field_and_reason(params: Any, field: str, reason: str) -> None:
    expected = [(f"responses_create_params{field}", reason)]
    assert found(response_contract(), {"responses_create_params": params}) == expected


def test_text_input_is_one_user_message() -> None:
    assert input_messages({"responses_create_params": {"input": "2 + 2?"}}) == [USER]


def test_mmpr_tiny_row_as_pandas_reads_it_is_a_good_prompt_row() -> None:
    row = {
        "data_source": "mmpr",
        "prompt": np.array([{"content": "<image>What?", "role": "user"}], dtype=object),
        "images": np.array([{"bytes": png(), "path": "a.png"}], dtype=object),
        "ability": "vision",
        "reward_model": {"ground_truth": "A", "style": "rule"},
        "extra_info": {"answer": "A", "index": 0, "question": "What?", "split": "train"},
    }
    contract = prompt_contract({"multiple_choice": frozenset({"string"})}, "multiple_choice")
    assert found(contract, row) == []
    broken = {**row, "images": [{"bytes": png()[:50], "path": None}, {"bytes": None, "path": None}]}
    assert found(contract, broken) == [
        ("images[0].bytes", "not a readable image"),
        ("images[1]", "no image"),
    ]
    assert embedded_image_problems("a.png")[0].reason == "not a list of images"


def test_local_file_and_memory_uris_are_opened_through_fsspec(tmp_path: Path) -> None:
    import fsspec

    (tmp_path / "a.png").write_bytes(png())
    for uri in (str(tmp_path / "a.png"), f"file://{tmp_path}/a.png", f"FILE://{tmp_path}/a.png"):
        assert load_image(resolve_uri(uri, Path("elsewhere"))).size == (4, 4)
    with fsspec.open("memory://media/a.png", "wb") as file:
        file.write(png())  # pyright: ignore[reportAttributeAccessIssue]
    assert open_media("memory://media/a.png") == png()


def test_remote_uri_is_fetched_by_http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RL_TRAIN_MEDIA_HOSTS", "127.0.0.1")
    from functools import partial
    from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
    from threading import Thread

    (tmp_path / "a.png").write_bytes(png())

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path))) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            uri = f"HTTP://127.0.0.1:{server.server_port}/a.png"
            assert load_image(uri).size == (4, 4)
            contract = preference_contract(tmp_path, MediaLimits(check_remote=True))
            assert found(contract, {**PAIR, "image": uri}) == []
            missing = uri.replace("a.png", "b.png")
            assert found(contract, {**PAIR, "image": missing}) == [
                ("image", "not a readable image")
            ]
            assert found(preference_contract(tmp_path), {**PAIR, "image": missing}) == []
        finally:
            server.shutdown()
            thread.join()


def test_limits_are_kept_before_anything_is_decoded() -> None:
    with pytest.raises(DataError, match="8 x 8 is more than 60 pixels"):
        load_image(png(8), MediaLimits(max_pixels=60))
    with pytest.raises(DataError, match="more than 10 bytes"):
        load_image(png(8), MediaLimits(max_bytes=10))
