"""A run folder shows only what is complete, and one recipe with one data set is one run."""

import os
import shutil
from pathlib import Path

import pytest

from rl_core.errors import RecipeError, StorageError
from rl_core.runs.checkpoints.digests import SENTINEL
from rl_core.runs.recipes import parse_recipe
from rl_core.runs.run_folder import RunFolder, run_key
from schemas.receipts import EvalReceipt, IterationReceipt
from schemas.recipe import Recipe

KEPT = 99


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path / "run")
    made.create("name: tiny\n")
    return made


def publish(
    folder: RunFolder, iteration: int, keep_last: int = KEPT, text: str = "weights"
) -> None:
    with folder.publish_checkpoint(iteration, {"step": 10 * iteration}, keep_last) as building:
        (building / "policy").mkdir()
        (building / "policy" / "weights.txt").write_text(text)


def test_a_published_checkpoint_is_found_with_its_files_and_state(folder: RunFolder):
    assert folder.last_complete() == 0
    publish(folder, 1)
    publish(folder, 2)
    assert folder.last_complete() == 2
    assert folder.trainer_state(2) == {"step": 20}
    assert (folder.checkpoint(1) / "policy" / "weights.txt").read_text() == "weights"
    assert [path.name for path in folder.checkpoints.glob(".*")] == []


def test_a_checkpoint_without_its_sentinel_does_not_exist(folder: RunFolder):
    publish(folder, 1)
    publish(folder, 2)
    (folder.checkpoint(2) / SENTINEL).unlink()
    assert folder.last_complete() == 1


def test_nothing_can_be_seen_while_a_checkpoint_is_written(folder: RunFolder):
    with folder.publish_checkpoint(1, {"step": 10}, KEPT) as building:
        (building / "weights.txt").write_text("half")
        assert folder.last_complete() == 0
        assert not folder.checkpoint(1).exists()
    assert folder.last_complete() == 1


def test_a_checkpoint_that_is_replaced_or_pruned_loses_its_sentinel_first(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
):
    for iteration in (1, 2):
        publish(folder, iteration)
    rmtree, removed = shutil.rmtree, []

    def remove(path: Path, **_: object) -> None:
        # A kill in the middle may leave any part of it.
        if path.is_dir() and path.name.startswith("iteration"):
            removed.append(path.name)
            assert not (path / SENTINEL).exists()
        rmtree(path, ignore_errors=True)

    monkeypatch.setattr(shutil, "rmtree", remove)
    publish(folder, 2, keep_last=1)
    assert removed == ["iteration-0002", "iteration-0001"]


def test_a_checkpoint_is_synced_then_renamed_then_marked_complete(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
):
    """After a power cut a renamed folder may hold empty files, and a sentinel may say that it is
    complete."""
    steps: list[str] = []
    sync, rename, replace = os.fsync, os.replace, Path.replace

    def noted_sync(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        steps.append(f"sync {'build' if path.name.startswith('.build-') else path.name}")
        sync(descriptor)

    def noted_rename(source: Path, target: Path) -> None:
        steps.append(f"rename to {Path(target).name}")
        rename(source, target)

    def noted_replace(source: Path, target: Path) -> Path:
        steps.append(f"rename to {target.name}")
        return replace(source, target)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(os, "replace", noted_rename)
    monkeypatch.setattr(Path, "replace", noted_replace)
    publish(folder, 1)
    renamed, marked = steps.index("rename to iteration-0001"), steps.index(f"rename to {SENTINEL}")
    assert {"sync build", "sync policy", "sync weights.txt", "sync trainer.json"} <= set(
        steps[:renamed]
    )
    assert "sync checkpoints" in steps[renamed:marked], (
        "the new name is not on the disk when the sentinel is"
    )
    assert "sync iteration-0001" in steps[marked:], "the sentinel's own name is never synced"
    assert not any(SENTINEL in step for step in steps[:renamed])


@pytest.mark.parametrize(
    "error", [RuntimeError("worker died"), KeyboardInterrupt()], ids=["error", "interrupt"]
)
def test_an_error_while_writing_leaves_the_former_state(folder: RunFolder, error: BaseException):
    publish(folder, 1, text="former")
    with pytest.raises(type(error)), folder.publish_checkpoint(1, {"step": 10}, KEPT) as building:
        (building / "weights.txt").write_text("half")
        raise error
    with pytest.raises(type(error)), folder.publish_checkpoint(2, {"step": 20}, KEPT):
        raise error
    assert folder.last_complete() == 1
    assert (folder.checkpoint(1) / "policy" / "weights.txt").read_text() == "former"
    assert [path.name for path in folder.checkpoints.iterdir()] == ["iteration-0001"]


def test_a_full_disk_is_told_as_something_to_put_right(folder: RunFolder):
    with (
        pytest.raises(StorageError, match=r"iteration-0001 .*No space left.*RL_TRAIN_HOME"),
        folder.publish_checkpoint(1, {"step": 10}, KEPT),
    ):
        raise OSError(28, "No space left on device")
    assert folder.last_complete() == 0


def test_what_a_killed_writer_left_is_removed_by_the_next(folder: RunFolder):
    leftover = folder.checkpoints / ".build-dead"
    leftover.mkdir()
    (leftover / "weights.txt").write_text("half")
    assert folder.last_complete() == 0
    publish(folder, 1)
    assert not leftover.exists()


def test_publishing_again_replaces_the_whole_checkpoint(folder: RunFolder):
    publish(folder, 1, text="old")
    (folder.checkpoint(1) / "extra.txt").write_text("stale")
    publish(folder, 1, text="new")
    assert (folder.checkpoint(1) / "policy" / "weights.txt").read_text() == "new"
    assert not (folder.checkpoint(1) / "extra.txt").exists()
    assert folder.last_complete() == 1


@pytest.mark.parametrize("keep", [1, 2])
def test_only_the_newest_checkpoints_are_kept(folder: RunFolder, keep: int):
    for iteration in range(1, 5):
        publish(folder, iteration, keep_last=keep)
    kept = sorted(path.name for path in folder.checkpoints.iterdir())
    assert kept == [f"iteration-{iteration:04d}" for iteration in range(5 - keep, 5)]
    assert folder.last_complete() == 4


def test_history_holds_complete_iterations_only(folder: RunFolder):
    folder.save_steps(1, [{"step": 1.0}, {"step": 2.0}])
    publish(folder, 1)
    folder.save_steps(2, [{"step": 3.0}])
    assert folder.history() == [{"step": 1.0}, {"step": 2.0}]
    publish(folder, 2)
    assert folder.history() == [{"step": 1.0}, {"step": 2.0}, {"step": 3.0}]


def test_a_receipt_comes_back_as_it_was_until_the_folder_is_discarded(folder: RunFolder):
    receipt = IterationReceipt(
        iteration=1, first_step=1, last_step=2, checkpoint="c", metrics={"reward_mean": 0.5}
    )
    assert folder.receipt("iteration-0001", IterationReceipt) is None
    folder.save_receipt("iteration-0001", receipt)
    assert RunFolder(folder.root).receipt("iteration-0001", IterationReceipt) == receipt
    folder.discard()
    assert folder.receipt("iteration-0001", IterationReceipt) is None


def test_the_folder_says_what_made_it(folder: RunFolder):
    assert (folder.root / "recipe.yaml").read_text() == "name: tiny\n"
    assert (folder.root / "revision.txt").read_text().strip()


def recipe(**changes: object) -> Recipe:
    values = {
        "name": "tiny",
        "model": {"path": "some/model"},
        "data": {"train": ["t.jsonl"], "eval": ["e.jsonl"]},
    }
    return parse_recipe({**values, **changes})


def test_the_run_key_of_a_recipe_stays_when_others_may_say_more() -> None:
    """A new setting is left out of the key at its default (`trained_values`), or every run that was
    begun before it would begin again."""
    values = {"name": "x", "model": {"path": "m"}, "data": {"train": ["a"], "eval": ["b"]}}
    key = run_key(Recipe.model_validate(values), "c")
    assert key.startswith("15ad3f7115fa4005"), key


def test_the_run_key_ignores_placement_and_registration():
    key = run_key(recipe(), "data")
    assert run_key(recipe(placement={"num_devices": 2, "micro_batch_size": 2}), "data") == key
    assert run_key(recipe(registration={"margin": 0.1}), "data") == key


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": {"learning_rate": 2e-5}},
        {"seed": 1},
        {"algorithm": {"name": "grpo", "clip_high": 0.3}},
    ],
)
def test_the_run_key_follows_what_decides_the_result(changes: dict[str, object]):
    assert run_key(recipe(**changes), "data") != run_key(recipe(), "data")


def test_the_run_key_ignores_what_the_cache_says_already_and_what_changes_no_step():
    key = run_key(recipe(), "data")
    rows = {"train": ["t.jsonl"], "eval": ["e.jsonl"]}
    assert run_key(recipe(data={**rows, "map": {"prompt": "question"}}), "data") == key
    assert run_key(recipe(training={"on_no_signal": "stop", "no_signal_steps": 3}), "data") == key


def test_the_run_key_follows_the_data():
    assert run_key(recipe(), "data") != run_key(recipe(), "other data")


def finish(folder: RunFolder, iteration: int, reward: float, accuracy: float | None = None) -> None:
    """An iteration as a session ends it: receipt, checkpoint, evaluation."""
    metrics = {"reward_mean": reward}
    name = f"iteration-{iteration:04d}"
    folder.save_receipt(
        name,
        IterationReceipt(
            iteration=iteration, first_step=1, last_step=2, checkpoint="c", metrics=metrics
        ),
    )
    metric = "reward_mean" if accuracy is None else "eval/accuracy"
    best = folder.best(metric, 1)
    with folder.publish_checkpoint(iteration, {"step": iteration}, 1, best) as building:
        (building / "weights.txt").write_text("weights")
    if accuracy is not None:
        folder.save_receipt(f"evaluate-iteration-{iteration}", evaluated(accuracy))


def evaluated(accuracy: float) -> EvalReceipt:
    zeros = dict.fromkeys(
        ("ci_low", "ci_high", "mean_length", "truncated_share", "mean_reward"), 0.0
    )
    return EvalReceipt(
        label="iteration",
        step=1,
        num_rows=1,
        accuracy=accuracy,
        samples_path="s",
        eval_digest="d",
        **zeros,
    )


def kept(folder: RunFolder) -> list[int]:
    return sorted(int(path.name.split("-")[1]) for path in folder.checkpoints.iterdir())


def test_the_best_checkpoint_is_kept_beside_the_last(folder: RunFolder):
    seen = []
    for iteration, reward in enumerate([0.2, 0.9, 0.5, 0.9, 0.1], start=1):
        finish(folder, iteration, reward)
        seen.append(kept(folder))
    # The newer of two equals is kept.
    assert seen == [[1], [2], [2, 3], [4], [4, 5]]


def test_the_best_by_evaluation_is_kept(folder: RunFolder):
    for iteration, accuracy in enumerate([0.3, 0.8, 0.6, 0.7], start=1):
        finish(folder, iteration, reward=float(iteration), accuracy=accuracy)
    assert kept(folder) == [2, 4]


def test_a_figure_that_is_not_finite_is_never_the_best(folder: RunFolder):
    finish(folder, 1, 0.1)
    finish(folder, 2, float("nan"))
    finish(folder, 3, 0.0)
    assert kept(folder) == [1, 3]


def test_an_unknown_metric_is_named_with_the_known_ones(folder: RunFolder):
    finish(folder, 1, 0.1)
    with pytest.raises(RecipeError, match=r"best_metric: no metric 'reward_men' .*'reward_mean'"):
        folder.best("reward_men", 1)


def test_evaluations_come_by_step_the_final_one_last(folder: RunFolder):
    for label, step in (("final", 8), ("iteration-2", 8), ("baseline", 0), ("iteration-1", 4)):
        folder.save_receipt(
            f"evaluate-{label}", evaluated(0.5).model_copy(update={"label": label, "step": step})
        )
    assert [one.label for one in folder.evaluations()] == [
        "baseline",
        "iteration-1",
        "iteration-2",
        "final",
    ]
