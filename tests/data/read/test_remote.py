"""Rows behind addresses: an S3 server and a web server of this machine."""

from __future__ import annotations

import functools
import io
import json
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from PIL import Image

from rl_core.data.order.media_source import read_media_prompts
from rl_core.data.read.remote import base_of, remote_files
from rl_core.errors import DataError, Unreachable
from rl_core.runtime.home import Home
from schemas.rows.media_checks import load_image
from tests.command import answer, rl_train
from tests.object_store import ObjectStore, object_store

ROWS = [
    {
        "prompt": [{"role": "user", "content": f"What is {i} + 1?"}],
        "env_class": "gsm8k",
        "reward_spec": {"ground_truth": str(i + 1)},
    }
    for i in range(4)
]


def lines(*rows: object) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with object_store() as store:
        yield store


class Web(ThreadingHTTPServer):
    """Files of a folder, and what was asked for."""

    def __init__(self, folder: Path) -> None:
        self.gets = list[str]()
        web = self

        class Handler(SimpleHTTPRequestHandler):
            def send_head(self):
                if self.command == "GET":
                    web.gets.append(self.path)
                refused = {"/broken.jsonl": 503, "/closed.jsonl": 403}.get(self.path)
                if refused is None:
                    return super().send_head()
                self.send_error(refused)
                return None

            def log_message(self, format: str, *args: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    folder = tmp_path / "served"
    folder.mkdir()
    with Web(folder) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RL_TRAIN_HOME", str(tmp_path / "home"))
    return Home.default().data


@pytest.mark.slow
def test_a_file_a_folder_and_a_glob_of_a_bucket_are_validated(
    store: ObjectStore, tmp_path: Path
) -> None:
    address = store.put("rows (1)/some rows.jsonl", lines(*ROWS))
    store.put("rows (1)/part/more.jsonl", lines(*ROWS[:1]))
    store.put("rows (1)/notes.md", b"about")
    for source, count in (
        (address, 4),
        ("S3://bucket/rows (1)", 5),
        ("s3://bucket/rows*/*.jsonl", 4),
    ):
        said = answer(tmp_path, "validate", source, **store.environment)
        assert f"{count} of {count} rows are good" in said


@pytest.mark.slow
def test_a_folder_of_a_bucket_gives_the_split_that_is_asked_for(
    store: ObjectStore, tmp_path: Path
) -> None:
    store.put("splits/train.jsonl", lines(*ROWS))
    store.put("splits/test.jsonl", lines(*ROWS[:1]))
    for source, count in {"s3://bucket/splits": 4, "s3://bucket/splits:test": 1}.items():
        said = answer(tmp_path, "validate", source, **store.environment)
        assert f"{count} of {count} rows are good" in said
    done = rl_train(tmp_path, "validate", "s3://bucket/splits:dev", **store.environment)
    assert (done.returncode, "no file of the split" in done.stderr) == (2, True)


@pytest.mark.slow
def test_a_changed_object_is_read_anew_and_its_rows_are_named_by_address(
    store: ObjectStore, tmp_path: Path
) -> None:
    address = store.put("changing.jsonl", lines(*ROWS))
    answer(tmp_path, "validate", address, **store.environment)
    store.put("changing.jsonl", lines(ROWS[0], {"prompt": 1}))
    done = rl_train(tmp_path, "validate", address, **store.environment)
    assert done.returncode == 2
    assert "/s3/bucket/changing.jsonl/" in done.stderr and ".jsonl:2 field prompt" in done.stderr


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("s3://bucket/nothing.jsonl", "no such file there"),
        ("s3://no-bucket/rows.jsonl", "no such file there"),
        ("gopher://host/rows.jsonl", "no such file"),
    ],
)
def test_nothing_there_is_the_users_fault(
    source: str, said: str, store: ObjectStore, tmp_path: Path
) -> None:
    done = rl_train(tmp_path, "validate", source, **store.environment)
    assert (done.returncode, said in done.stderr, "Traceback" in done.stderr) == (2, True, False)


def test_a_server_that_does_not_answer_is_the_machines_fault(tmp_path: Path) -> None:
    dead = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_MAX_ATTEMPTS": "1"}
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    done = rl_train(tmp_path, "validate", "s3://bucket/rows.jsonl", **dead, **keys)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert "s3://bucket/rows.jsonl: cannot be reached" in done.stderr


def test_a_web_file_is_fetched_once_per_version(web: Web, tmp_path: Path, home: Path) -> None:
    file = tmp_path / "served" / "rows.jsonl"
    file.write_bytes(lines(*ROWS))
    (first,) = remote_files(f"{web.url}/rows.jsonl?token=secret")
    assert first.read_bytes() == file.read_bytes()
    assert "secret" not in "".join(p.read_text() for p in home.rglob("origin.txt")) + str(first)
    bodies = len(web.gets)
    assert remote_files(f"{web.url}/rows.jsonl?token=secret") == [first]
    assert remote_files(f"{web.url}/rows.jsonl?token=secret", download=False) == [first]
    assert len(web.gets) == bodies
    file.write_bytes(lines(*ROWS, *ROWS))
    (second,) = remote_files(f"{web.url}/rows.jsonl?token=secret")
    assert second != first and second.read_bytes() == file.read_bytes()


def test_whose_fault_a_web_servers_answer_is(web: Web, home: Path) -> None:
    with pytest.raises(DataError, match="no such file there"):
        remote_files(f"{web.url}/missing.jsonl")
    with pytest.raises(DataError, match="403"):
        remote_files(f"{web.url}/closed.jsonl")
    with pytest.raises(Unreachable, match="503"):
        remote_files(f"{web.url}/broken.jsonl")


def test_relative_media_of_a_fetched_file_lead_to_its_own_server(
    web: Web, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RL_TRAIN_MEDIA_HOSTS", "127.0.0.1")
    served = tmp_path / "served"
    (served / "rows").mkdir()
    (served / "images").mkdir()
    picture = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(picture, "PNG")
    (served / "images" / "a.png").write_bytes(picture.getvalue())
    ref = {"modality": "image", "role": "condition", "uri": "../images/a.png"}
    (served / "rows" / "prompts.jsonl").write_bytes(lines({"prompt": "x", "media": [ref]}))
    said = answer(tmp_path / "home", "validate", f"{web.url}/rows/prompts.jsonl")
    assert "1 of 1 rows are good" in said
    (file,) = remote_files(f"{web.url}/rows/prompts.jsonl")
    assert base_of(file) == f"{web.url}/rows"
    (prompt,) = read_media_prompts(f"{web.url}/rows/prompts.jsonl")
    assert prompt.media_refs[0].uri == f"{web.url}/images/a.png"
    assert load_image(prompt.media_refs[0].uri).getpixel((0, 0)) == (255, 0, 0)


def test_a_file_uri_is_a_path(tmp_path: Path) -> None:
    file = tmp_path / "my rows.jsonl"
    file.write_bytes(lines(*ROWS))
    assert "4 of 4 rows are good" in answer(tmp_path / "home", "validate", file.as_uri())


@pytest.mark.slow
def test_a_stage_fetches_its_raw_files_from_a_bucket(store: ObjectStore, tmp_path: Path) -> None:
    answer(tmp_path / "home", "data", "make-fixture", str(tmp_path / "fixture"))
    raw = tmp_path / "fixture" / "text" / "raw"
    for file in sorted(path for path in raw.rglob("*") if path.is_file()):
        store.put(f"raw/{file.relative_to(raw)}", file.read_bytes())
    folders = ["--input-dir", str(tmp_path / "in"), "--output-dir", str(tmp_path / "out")]
    prepare = ["prep", "-c", "text", *folders, "source_uri=s3://bucket/raw"]
    assert "built" in answer(tmp_path / "home", *prepare, **store.environment)
    assert "hit" in answer(tmp_path / "home", *prepare, **store.environment)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest
