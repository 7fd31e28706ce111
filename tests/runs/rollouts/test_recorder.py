"""What a step sampled is on disk as it was trained on: once, whole, and no more than was asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_core.errors import StorageError
from rl_core.runs.rollouts.columns import TIMING
from rl_core.runs.rollouts.reading import Row, files_of, read_rows
from rl_core.runs.rollouts.recorder import RolloutRecorder
from rl_core.runs.run_folder import RunFolder
from rl_core.trainers.domains.text import TextTrainer
from rl_core.trainers.refill import Refill
from rl_core.trainers.step_record import Portion, StepRecord
from tests.rollout.built import built
from tests.rollout.vowels import ITEMS, NUM_PROMPTS, NUM_SIBLINGS
from tests.rollout.vowels import recipe as vowels
from tests.runs.rollouts.stored import batch, recipe, store

GROUPS = [f"g{number // 2}" for number in range(8)]


def rows_of(folder: Path, step: int) -> list[Row]:
    return list(read_rows(files_of(folder)[step]))


def without_timing(rows: list[Row]) -> list[Row]:
    return [{key: value for key, value in row.items() if key not in TIMING} for row in rows]


@pytest.mark.usefixtures("ray_cluster")
def test_a_file_equals_what_was_trained_on(tiny_model_dir: Path, tmp_path: Path):
    settings, folder = vowels(tiny_model_dir, dedicated=False), RunFolder(tmp_path)
    recorder = RolloutRecorder(settings, folder)
    with built(TextTrainer(settings, settings.model.path, ITEMS)) as trainer:
        metrics, rollout = trainer.step()
        recorder.put(trainer.record)
        recorder.flush()
        trained = rollout.fetch()
    rows = rows_of(folder.rollouts, 1)
    assert len(rows) == NUM_PROMPTS * NUM_SIBLINGS
    width = trained.tensor("response_mask").shape[1]
    for number, row in enumerate(rows):
        length = int(trained.tensor("attention_mask")[number, -width:].sum())
        for name in ("response_mask", "rollout_log_probs", "advantages", "turn_rewards"):
            assert row[name] == trained.tensor(name)[number, :length].tolist(), name
        ids, used = trained.tensor("input_ids")[number], trained.tensor("attention_mask")[number]
        assert row["prompt_ids"] + row["response_ids"] == ids[used.bool()].tolist()
        assert row["reward"] == float(trained.tensor("rewards")[number])
        assert (row["sample_id"], row["response"]) == tuple(
            trained.non_tensor_batch[name][number] for name in ("sample_id", "response")
        )
        assert [one["content"] for one in row["turns"]] == trained.non_tensor_batch["replies"][
            number
        ]
    taught = [row for row in rows if row["train_log_probs"] is not None]
    assert {row["sample_id"] for row in rows if any(row["advantages"])} <= {
        row["sample_id"] for row in taught
    }
    apart = np.concatenate(
        [
            np.abs(np.subtract(row["train_log_probs"], row["rollout_log_probs"], dtype="f4"))
            for row in taught
        ]
    )
    assert float(apart.mean()) == pytest.approx(metrics["delta_log_prob_mean"], rel=1e-4)
    assert float(apart.max()) == pytest.approx(metrics["delta_log_prob_max"], rel=1e-4)


def test_a_step_that_is_repeated_replaces_its_file_by_an_equal_one(tmp_path: Path):
    rows = batch(GROUPS, list("abcdefgh"), [0.0, 1.0] * 4)
    (path,) = files_of(store(tmp_path, {1: rows})).values()
    first = path.read_bytes()
    rows.non_tensor_batch["env_seconds"][:] = 9.0
    folder = store(tmp_path, {1: rows})
    assert path.read_bytes() != first
    again = rows_of(folder, 1)
    path.write_bytes(first)
    assert without_timing(again) == without_timing(rows_of(folder, 1))
    assert [one.name for one in folder.iterdir()] == ["step-00001.parquet"]


def test_what_a_kill_left_behind_is_removed(tmp_path: Path):
    folder = RunFolder(tmp_path).rollouts
    (folder / ".step-00003.media").mkdir(parents=True)
    (folder / ".step-00002.parquet.12ab34cd.tmp").write_bytes(b"half")
    store(tmp_path, {1: batch(["a"], ["x"], [1.0])})
    assert [one.name for one in folder.iterdir()] == ["step-00001.parquet"]


def test_a_sample_is_of_whole_groups_and_always_the_same(tmp_path: Path):
    rows = batch(GROUPS, list("abcdefgh"), [0.0, 1.0] * 4)
    found = [
        [row["sample_id"] for row in rows_of(store(tmp_path / name, {4: rows}, "sample:5"), 4)]
        for name in ("one", "two")
    ]
    assert found[0] == found[1] and len(found[0]) == 5
    sizes = [sum(f":{group}:" in one for one in found[0]) for group in sorted(set(GROUPS))]
    assert sorted(sizes) == [0, 1, 2, 2]
    many = store(tmp_path / "many", dict.fromkeys(range(1, 9), rows), "sample:2")
    others = {tuple(row["group_id"] for row in rows_of(many, step)) for step in range(1, 9)}
    assert len(others) > 1, "each step has its own"


def test_none_writes_nothing(tmp_path: Path):
    assert not store(tmp_path, {1: batch(["a"], ["x"], [1.0])}, "none").exists()


@pytest.mark.parametrize("wrong", ["some", "sample:0", "sample:", "sample:x", "ALL"])
def test_another_choice_is_refused(wrong: str):
    with pytest.raises(ValueError, match=r"write all, none, or sample:N with N of 1 or more"):
        recipe(tracking={"rollouts": wrong})


def test_a_text_that_no_file_can_hold_is_written_out(tmp_path: Path):
    broken = "caf\udce9"
    (row,) = rows_of(store(tmp_path, {1: batch(["a"], [broken], [1.0])}), 1)
    assert row["response"] == row["turns"][0]["content"] == "caf\\udce9"


def test_a_full_disk_is_said_with_the_file(tmp_path: Path):
    RunFolder(tmp_path).rollouts.write_text("a file in place of the folder")
    with pytest.raises(StorageError, match=r"rollouts.*step-00001\.parquet"):
        store(tmp_path, {1: batch(["a"], ["x"], [1.0])})


def test_groups_that_dynamic_sampling_replaced_are_stored_as_not_trained(tmp_path: Path):
    found = Refill(2, 2)
    first = batch(["a", "a", "b", "b"], list("wxyz"), [1.0, 1.0, 0.0, 1.0])
    second = batch(["c", "c", "d", "d"], list("wxyz"), [0.0, 1.0, 0.0, 1.0])
    found.add(first)
    found.add(second)
    trained = found.batch()
    record = StepRecord(1, tracks={"text": [Portion(trained), *found.left_out(trained)]})
    recorder = RolloutRecorder(recipe(), RunFolder(tmp_path))
    recorder.put(record)
    recorder.flush()
    rows = rows_of(RunFolder(tmp_path).rollouts, 1)
    kept: dict[bool, list[Any]] = {True: [], False: []}
    for row in rows:
        kept[row["trained"]].append(row["group_id"])
    assert kept == {True: ["b", "b", "c", "c"], False: ["a", "a", "d", "d"]}


def test_pictures_lie_beside_their_file_and_are_read_back_without_loss(tmp_path: Path):
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 255, (2, 8, 8, 3), dtype=np.uint8)
    rows = batch(["a", "a"], ["", ""], [0.0, 1.0], images=[pixels[0], None], turns=[[], []])
    folder = store(tmp_path, {7: rows})
    first, second = rows_of(folder, 7)
    assert (first["made"], second["made"]) == ("step-00007/00000.png", None)
    assert np.array_equal(np.asarray(Image.open(folder / first["made"])), pixels[0])


def test_log_probabilities_of_shards_and_portions_go_to_their_rows():
    rows = batch(["a"] * 3, list("xyz"), [0.0, 1.0, 2.0])
    shape = rows.tensor("rollout_log_probs")
    whole = torch.arange(4 * 5.0).view(4, 5)  # the last row is a copy that fills up a shard
    joined = Portion(rows, log_probs=(whole[:2], whole[2:])).log_probs_like(shape)
    assert torch.equal(joined, whole[:3])
    split = whole[:3].reshape(15, 1)
    assert torch.equal(Portion(rows, log_probs=(split,)).log_probs_like(shape), whole[:3])
    assert Portion(rows, log_probs=(whole[:2, :3],)).log_probs_like(shape).isnan().all()
