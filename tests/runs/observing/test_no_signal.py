"""Steps in a row that teach nothing are told apart from a few, with the replies that show why."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rl_core.data_proto import DataProto
from rl_core.errors import NoSignal
from rl_core.rollout.sample_ids import id_columns
from rl_core.runs.observing.no_signal import SignalWatch, judged_replies, read_silence
from rl_core.runs.recipes import load_recipe
from rl_core.runs.run_folder import RunFolder
from rl_core.trainers.progress import ProgressEvent, listeners

LIMIT = 3


@pytest.fixture
def notes() -> Iterator[list[str]]:
    said: list[str] = []

    def follow(event: ProgressEvent) -> None:
        said.append(event.text)

    listeners.append(follow)
    yield said
    listeners.remove(follow)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    (tmp_path / "steps").mkdir()
    return RunFolder(tmp_path)


def rollout() -> DataProto:
    """Two replies to each of four prompts."""
    prompts = [f"p{row // 2}" for row in range(8)]
    return DataProto.from_dict(
        {"rewards": torch.zeros(8)},
        {
            **id_columns(prompts),
            "uid": prompts,
            "prompt": [[{"role": "user", "content": prompt}] for prompt in prompts],
            "response": [f"reply {row}" for row in range(8)],
            "ground_truth": ["4"] * 8,
            "env_read": ['{"answer": null}'] * 8,
        },
    )


def watch(folder: RunFolder, *overrides: str, recipe: str = "text") -> SignalWatch:
    return SignalWatch(
        load_recipe(recipe, [f"training.no_signal_steps={LIMIT}", *overrides]), folder
    )


def observe(watched: SignalWatch, *shares: float, first: int = 1, prefix: str = "") -> None:
    for step, share in enumerate(shares, start=first):
        watched.observe({"step": step, f"{prefix}zero_advantage_share": share}, rollout())


def test_it_speaks_once_for_so_many_steps_in_a_row(folder: RunFolder, notes: list[str]):
    observe(watch(folder), 1.0, 1.0, 0.9, 1.0, 1.0)
    assert (notes, read_silence(folder)) == ([], None)
    observe(watch(folder), 0.9, 1.0, 1.0, 1.0, 1.0, 1.0)
    (said,) = notes
    assert said.startswith("no signal in steps 2 to 4: every advantage was 0")
    assert said.count(":sample:0: reward 0, truth '4', read as {\"answer\": null}: 'reply ") == 3


def test_the_replies_are_to_different_prompts():
    assert [(one.prompt, one.reply) for one in judged_replies(rollout())] == [
        ("p0", "reply 0"),
        ("p1", "reply 2"),
        ("p2", "reply 4"),
    ]


def test_a_silence_is_read_back(folder: RunFolder, notes: list[str]):
    observe(watch(folder), 1.0, 1.0, 1.0)
    found = read_silence(folder)
    assert found is not None
    assert [str(found)] == notes
    assert found.replies == tuple(judged_replies(rollout()))


def test_it_stops_a_run_that_asked_for_it(folder: RunFolder, notes: list[str]):
    watched = watch(folder, "training.on_no_signal=stop")
    observe(watched, 1.0, 1.0)
    with pytest.raises(NoSignal, match="no signal in steps 1 to 3") as caught:
        observe(watched, 1.0, first=3)
    assert "reply 0" in str(caught.value)
    assert notes == []


def test_steps_before_a_restart_count(folder: RunFolder, notes: list[str]):
    folder.save_steps(1, [{"step": 1.0, "zero_advantage_share": 1.0}] * 2)
    (folder.checkpoint(1)).mkdir(parents=True)
    (folder.checkpoint(1) / ".complete").touch()
    assert len(folder.history()) == 2
    observe(watch(folder), 1.0, first=3)
    assert notes[0].startswith("no signal in steps 1 to 3")


def test_a_shorter_run_is_judged_by_all_its_steps(folder: RunFolder, notes: list[str]):
    observe(watch(folder, "training.num_iterations=1", "training.steps_per_iteration=1"), 1.0)
    assert notes[0].startswith("no signal in step 1: ")


def test_a_track_that_learns_is_a_signal(folder: RunFolder, notes: list[str]):
    watched = watch(folder, recipe="unified")
    shares = {"text/zero_advantage_share": 1.0, "images/zero_advantage_share": 0.5}
    for step in range(1, 5):
        watched.observe({"step": step, **shares}, rollout())
    assert notes == []


def test_pairs_have_no_advantages_to_watch(folder: RunFolder, notes: list[str]):
    watched = watch(folder, recipe="mpo")
    for step in range(1, 5):
        watched.observe({"step": step, "loss": 1.0}, rollout())
    assert notes == []
