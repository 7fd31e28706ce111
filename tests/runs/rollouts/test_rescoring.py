"""Rewards of stored rollouts, by another recipe: those of training come out for the same one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from rl_core.data.store.prompt_rows import PreparedWriter
from rl_core.errors import RecipeError, StorageError
from rl_core.rewards.base import ImageScorer, Sample
from rl_core.runs.rollouts.rescoring import rescore
from rl_core.runs.run_folder import RunFolder
from tests.runs.rollouts.stored import batch, recipe, store


class Brightness(ImageScorer):
    """Mean level of a picture, 0 to 1."""

    def score_images(self, samples: Sequence[Sample]) -> Sequence[float]:
        return [float(np.asarray(one.image).mean()) / 255 for one in samples]


REPLIES = ["#### 3", "#### 4", "3", "words"]


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run of gsm8k whose truth is 3, in its lenient form."""
    rows = [
        {
            "uid": uid,
            "prompt": [{"role": "user", "content": "?"}],
            "env_class": "gsm8k",
            "env_extras": {"reward_spec": {"method": "rule", "ground_truth": "3"}},
        }
        for uid in ("a", "b")
    ]
    prepared = tmp_path / "prepared"
    prepared.mkdir()
    with PreparedWriter(prepared / "train.parquet") as writer:
        writer.write(rows, [1, 1])
    store(tmp_path, {1: batch(["a", "a", "b", "b"], REPLIES, [1.0, 0.0, 0.0, 0.0])})
    folder = RunFolder(tmp_path)
    folder.remember_tracking("key", "id", str(prepared))
    return folder


def test_the_same_recipe_gives_the_same_rewards(folder: RunFolder):
    found = list(rescore(folder, recipe(), recipe()))
    assert [(one.old, one.new, one.error) for one in found] == [
        (1.0, 1.0, None),
        *[(0.0, 0.0, None)] * 3,
    ]


def test_scorers_are_those_of_the_new_recipe(folder: RunFolder):
    length = {"name": "length", "weight": 0.5, "max_length": 4, "buffer": 4}
    found = list(rescore(folder, recipe(), recipe(rewards=[length]), 1))
    assert [one.parts for one in found] == [
        {"environment": float(number == 0), "length": -(number + 1) / 8} for number in range(4)
    ]
    assert [one.new for one in found] == [sum(one.parts.values()) for one in found]


def test_a_row_that_is_gone_has_no_reward_and_says_why(folder: RunFolder):
    store(folder.root, {1: batch(["a", "x"], REPLIES[:2], [1.0, 0.0])})
    kept, lost = rescore(folder, recipe(), recipe())
    assert kept.new == 1.0
    assert math.isnan(lost.new) and lost.error == "environment: no prepared row x"


def test_what_cannot_be_rescored_is_refused(folder: RunFolder):
    drawing = recipe(domain="diffusion")
    with pytest.raises(RecipeError, match="the recipe is of the domain diffusion, the run of text"):
        list(rescore(folder, recipe(), drawing))
    folder.remember_tracking("key", "id", str(folder.root / "gone"))
    with pytest.raises(StorageError, match=r"gone/train\.parquet: the prepared rows of this run"):
        list(rescore(folder, recipe(), recipe()))


def test_a_text_earns_the_rewards_of_its_pictures(tmp_path: Path):
    from rl_core.runs.rollouts.recorder import RolloutRecorder
    from rl_core.trainers.step_record import Portion, StepRecord

    texts = batch(["p"] * 2, ["bright", "dark"], [0.0, 0.0], id=["p/0", "p/1"], parent=["p"] * 2)
    pixels = [np.full((8, 8, 3), level, dtype=np.uint8) for level in (255, 255, 0, 51)]
    images = batch(
        ["p/0", "p/0", "p/1", "p/1"],
        [""] * 4,
        [0.0] * 4,
        turns=[[]] * 4,
        images=pixels,
        parent=["p/0", "p/0", "p/1", "p/1"],
        env_class=[None] * 4,
    )
    record = StepRecord(1, tracks={"images": [Portion(images)], "text": [Portion(texts)]})
    settings = recipe(domain="diffusion", rewards=[{"target": f"{__name__}:Brightness"}])
    recorder = RolloutRecorder(settings, RunFolder(tmp_path))
    recorder.put(record)
    recorder.flush()
    found = list(rescore(RunFolder(tmp_path), settings, settings))
    assert [round(one.new, 5) for one in found] == [1.0, 1.0, 0.0, 0.2, 1.0, 0.1]
    assert [one.track for one in found] == ["images"] * 4 + ["text"] * 2
