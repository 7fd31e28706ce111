"""A deployment of one's own: its name and its times are looked at before anything is asked of a
server."""

from pathlib import Path

import pytest

from rl_core.errors import RecipeError
from rl_core.services.own_deployment import own_deployment, shipped_names
from tests.command import rl_train


def test_it_runs_the_file_from_wherever_the_worker_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    entry = own_deployment(Path("mine.yaml"), "mine", "one_gpu", "0 3 * * 1")
    assert entry["parameters"] == {"recipe": str(tmp_path / "mine.yaml"), "profile": "one_gpu"}
    assert entry["schedules"] == [{"slug": "own", "cron": "0 3 * * 1", "timezone": "UTC"}]


def test_a_shipped_name_and_one_that_is_none_are_refused():
    assert "text" in shipped_names()
    with pytest.raises(RecipeError, match="--name text: a shipped deployment has that name"):
        own_deployment(Path("mine.yaml"), "text", None, None)
    with pytest.raises(RecipeError, match="expected small letters"):
        own_deployment(Path("mine.yaml"), "My recipe", None, None)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--name", "mine"], "--name mine: name the recipe that it is for"),
        (["nothing.yaml"], "nothing.yaml"),
        (["smoke/text", "--cron", "daily at 3"], "expected minute, hour, day, month and weekday"),
        (["smoke/text"], "PREFECT_API_URL is not set"),
    ],
)
def test_what_cannot_be_deployed_ends_in_one_sentence(
    arguments: list[str], said: str, tmp_path: Path
):
    done = rl_train(tmp_path, "deploy", *arguments)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert said in done.stderr
