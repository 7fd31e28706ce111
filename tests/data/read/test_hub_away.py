"""A mistyped path looks like a name of the hub; where the hub does not answer, one sentence says
both."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command import rl_train


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address that is taken and does not answer, so that nothing else starts there."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["validate", "rows/trian"], "rows/trian:train: no such file here"),
        (
            ["run", "smoke/text", "data.train=[rows/trian]", "--dry-run"],
            "rows/trian:train: no such file here",
        ),
        (["run", "smoke/text", "model.path=model/tyni"], "model/tyni: no such folder here"),
    ],
)
def test_it_is_said_in_one_sentence(command: list[str], said: str, nobody: str, tmp_path: Path):
    done = rl_train(
        tmp_path / "home", *command, HF_ENDPOINT=nobody, HF_HUB_OFFLINE="0", HF_HOME=str(tmp_path)
    )
    last = done.stderr.strip().splitlines()[-1]
    assert f"{said}, and the Hugging Face hub cannot be reached (" in last
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
