"""Raw folders: left alone when complete, fetched from a hub at a commit, or refused with what is
missing."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from rl_core.data import ensure_raw_dir
from rl_core.data.read.raw_dir import MARK, HubSource, missing_files
from rl_core.data.stages.run import load_stage, plan_stage, prepare_stage
from rl_core.errors import DataError
from rl_core.runtime.home import Home
from tests.command import rl_train

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY = Path(__file__).parents[3]
FETCH = """
import sys
from rl_core.data import ensure_raw_dir
from rl_core.errors import DataError
try:
    found = ensure_raw_dir(sys.argv[1], sys.argv[2], ("images.zip", "mmpr_tiny.parquet"))
    print("revision", found.revision)
except DataError as error:
    print("error", error)
"""


class Hub:
    """A dataset repository behind the parts of the hub's interface that a snapshot needs."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files, self.requests, self.broken = files, list[str](), set[str]()
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self._answer(body=False)

            def do_GET(self) -> None:
                self._answer(body=True)

            def _answer(self, *, body: bool) -> None:
                hub.requests.append(f"{self.command} {self.path}")
                content, name = b"", self.path.partition(f"/resolve/{COMMIT}/")[2]
                status = 200
                if self.path.startswith("/api/datasets/owner/tiny/tree/"):
                    tree = [
                        {"type": "file", "path": f, "size": len(c), "oid": "0" * 40}
                        for f, c in hub.files.items()
                    ]
                    content = json.dumps(tree).encode()
                elif self.path.startswith("/api/datasets/owner/tiny"):
                    siblings = [{"rfilename": file} for file in hub.files]
                    content = json.dumps(
                        {"id": "owner/tiny", "sha": COMMIT, "siblings": siblings}
                    ).encode()
                elif name in hub.files and not (name in hub.broken and body):
                    content = hub.files[name]
                else:
                    status = 404 if name not in hub.files else 500
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.send_header("X-Repo-Commit", COMMIT)
                self.send_header("ETag", f'"{abs(hash(content)):x}"')
                self.end_headers()
                if body:
                    self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:
                """Requests are in `hub.requests`."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever)

    def environment(self, folder: Path) -> dict[str, str]:
        """Variables of a process that may ask this hub."""
        return {
            "HF_ENDPOINT": self.url,
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HOME": str(folder / "hf"),
        }

    def fetch(self, folder: Path, uri: str) -> str:
        """What `ensure_raw_dir` says in a process that may ask this hub."""
        done = subprocess.run(
            [sys.executable, "-c", FETCH, str(folder), uri],
            cwd=REPOSITORY,
            env={
                **os.environ,
                **self.environment(folder.parent),
            },
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


@pytest.fixture
def hub() -> Iterator[Callable[[dict[str, bytes]], Hub]]:
    running: list[Hub] = []

    def serve(files: dict[str, bytes]) -> Hub:
        running.append(Hub(files))
        running[-1].thread.start()
        return running[-1]

    yield serve
    for one in running:
        one.server.shutdown()
        one.thread.join()
        one.server.server_close()


TINY = {"images.zip": b"zip", "mmpr_tiny.parquet": b"parquet", "README.md": b"about"}


def test_missing_files_are_fetched_and_the_commit_is_written_down(hub, tmp_path: Path) -> None:
    server = hub(TINY)
    assert server.fetch(tmp_path / "raw", "hf://owner/tiny") == f"revision {COMMIT}"
    assert (tmp_path / "raw" / "images.zip").read_bytes() == b"zip"
    mark = json.loads((tmp_path / "raw" / MARK).read_text())
    assert mark == {"source_uri": "hf://owner/tiny", "revision": COMMIT, "complete": True}
    assert all(f"/{COMMIT}/" in line for line in server.requests if "/resolve/" in line)


def test_a_complete_folder_asks_nobody(hub, tmp_path: Path) -> None:
    server = hub(TINY)
    (tmp_path / "raw").mkdir()
    for name in ("images.zip", "mmpr_tiny.parquet"):
        (tmp_path / "raw" / name).write_bytes(b"by hand")
    assert server.fetch(tmp_path / "raw", "hf://owner/tiny") == "revision None"
    assert server.requests == []


def test_an_interrupted_download_is_not_complete_and_is_continued(hub, tmp_path: Path) -> None:
    server, raw = hub(TINY), tmp_path / "raw"
    server.broken = {"mmpr_tiny.parquet"}
    assert "hf://owner/tiny: cannot be fetched" in server.fetch(raw, "hf://owner/tiny")
    (raw / "mmpr_tiny.parquet").write_bytes(b"half")
    assert missing_files(raw, ("images.zip",)) == [
        "the rest of hf://owner/tiny, whose download was interrupted"
    ]
    server.broken = set()
    assert server.fetch(raw, "hf://owner/tiny") == f"revision {COMMIT}"


def test_a_source_without_the_required_files_is_named(hub, tmp_path: Path) -> None:
    said = hub({"README.md": b"about"}).fetch(tmp_path / "raw", "hf://owner/tiny")
    assert said.endswith(
        "was fetched, and images.zip, mmpr_tiny.parquet is not in it; check source_uri"
    )


def test_without_a_source_the_exact_list_of_missing_files_is_given(tmp_path: Path) -> None:
    (tmp_path / "mmpr_tiny.parquet").write_bytes(b"x")
    with pytest.raises(DataError) as caught:
        ensure_raw_dir(
            tmp_path, None, ("images.zip", "mmpr_tiny.parquet"), env_name="OMNI3_MMPR_TINY_RAW"
        )
    assert str(caught.value) == (
        f"{tmp_path}: missing images.zip; put them there, set input_dir to where they are, or "
        "export OMNI3_MMPR_TINY_RAW, or set source_uri (hf://owner/name, s3://bucket/folder) to "
        "fetch them"
    )


@pytest.mark.parametrize(
    "leftover",
    [".cache/huggingface/x.lock", "README.md", "images.zip.incomplete", ".gitattributes"],
)
def test_what_an_interrupted_download_leaves_is_no_content(tmp_path: Path, leftover: str) -> None:
    (tmp_path / leftover).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / leftover).write_text("x")
    assert missing_files(tmp_path, ()) == ["any data file"]
    (tmp_path / "anything.json").write_text("{}")
    assert missing_files(tmp_path, ()) == [], (
        "any non-empty content is enough where the layout is not declared"
    )


@pytest.mark.parametrize(
    "uri", ["OpenGVLab/MMPR", "hf://MMPR", "ftp://example.org/x", "hf://a/b/c"]
)
def test_a_source_of_another_form_is_refused(uri: str) -> None:
    with pytest.raises(DataError, match=r"expected hf://owner/name, hf://owner/name@revision"):
        HubSource.parse(uri)


def test_a_source_may_name_its_revision() -> None:
    assert HubSource.parse("hf://OpenGVLab/MMPR-Tiny@v1") == HubSource("OpenGVLab/MMPR-Tiny", "v1")


@pytest.mark.slow
def test_the_text_stage_fetches_its_blend_and_describes_it_itself(hub, tmp_path: Path) -> None:
    row = {"responses_create_params": {"input": "2 + 2?"}, "expected_answer": "4"}
    lines = [json.dumps(row | {"id": i}) + "\n" for i in range(5)]
    server = hub({"train.jsonl": "".join(lines).encode(), "README.md": b"about"})
    paths = ["--input-dir", str(tmp_path / "raw"), "--output-dir", str(tmp_path / "out")]
    settings = ["source_uri=hf://owner/tiny", "val_fraction=0"]
    command = ["prep", "-c", "text", *paths, *settings]
    done = rl_train(tmp_path / "home", *command, **server.environment(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "train 5" in done.stdout
    (shard,) = (tmp_path / "out" / "train").glob("*.jsonl")
    assert len(shard.read_text().splitlines()) == 5


@pytest.mark.parametrize(
    ("stage", "variable", "default"),
    [
        ("vision", "OMNI3_MMPR_TINY_RAW", "data/mmpr_tiny/raw"),
        ("mpo", "OMNI3_MMPR_PUBLIC_RAW", "data/mmpr_public/raw"),
        ("text", "OMNI3_TEXT_RL_RAW", "data/text_rl/raw"),
    ],
)
def test_the_shipped_settings_are_those_of_the_documentation(
    stage: str, variable: str, default: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("NEMO_RUN_DIR", str(tmp_path / "run"))
    loaded = load_stage(stage)
    sources = {
        "vision": "hf://OpenGVLab/MMPR-Tiny",
        "mpo": "hf://OpenGVLab/MMPR",
        "text": "hf://nvidia/Nemotron-3-Nano-RL-Training-Blend",
    }
    assert loaded.config.source_uri == sources[stage]
    assert str(loaded.config.input_dir) == default
    assert loaded.output == tmp_path / "run" / "stage1_rl" / "data_prep" / stage / (
        "MMPR-v1.2" if stage == "mpo" else ""
    )
    monkeypatch.setenv(variable, str(tmp_path / "mine"))
    assert load_stage(stage).config.input_dir == tmp_path / "mine"


def test_the_revision_is_part_of_what_was_prepared(tmp_path: Path) -> None:
    from rl_core.builtin.data.make_fixture import make_fixture

    raw, home = make_fixture(tmp_path / "fixture")["vision"], Home(tmp_path / "home")
    stage = load_stage("vision", input_dir=raw, output_dir=tmp_path / "out")
    assert prepare_stage(stage, home=home).revision is None
    (raw / MARK).write_text(
        json.dumps({"source_uri": "hf://o/n", "revision": COMMIT, "complete": True})
    )
    plan = plan_stage(stage, home)
    assert (plan.hit, plan.explanation) == (False, "revision was added")
    assert prepare_stage(stage, home=home).revision == COMMIT
