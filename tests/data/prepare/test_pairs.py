"""Pairs from a cache or a file: what is drawn is what was published, and splits share no
question."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rl_core.builtin.data.make_fixture import make_fixture
from rl_core.builtin.data.pair_fixture import described_scenes
from rl_core.data.order.pair_rows import PairRows
from rl_core.data.order.preference_dataset import SENTINEL, PreferenceDataset
from rl_core.data.prepare.fingerprint import sha256_file
from rl_core.data.prepare.pairs import plan_pairs, prepare_pairs
from rl_core.data.stages.run import load_stage, prepare_stage
from rl_core.data.store.publish import parse_sentinel
from rl_core.errors import DataError
from schemas.recipe import Recipe


def recipe_of(train: list, held_out: list, **data: object) -> Recipe:
    values = {"train": train, "eval": held_out, **data}
    return Recipe.model_validate(
        {"name": "p", "domain": "preference", "model": {"path": "x"}, "data": values}
    )


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    raw = make_fixture(tmp_path / "fixture", num_rows=40)["mpo"]
    return Path(
        prepare_stage(load_stage("mpo", input_dir=raw, output_dir=tmp_path / "prepared")).output
    )


def halves(path: Path) -> Recipe:
    shared = {"path": str(path), "eval_fraction": 0.3}
    return recipe_of([shared | {"split": "train"}], [shared | {"split": "eval"}])


def test_what_training_draws_is_the_published_cache_by_digest(cache: Path, tmp_path: Path) -> None:
    receipt = prepare_pairs(halves(cache), tmp_path / "data", tmp_path / "cache")
    sentinel = parse_sentinel(cache, SENTINEL)
    assert sentinel is not None
    assert receipt.places == {sentinel.run_hash: str(cache)}
    assert {
        Path(file.path).relative_to(cache).as_posix(): file.sha256 for file in receipt.sources
    }.items() <= (sentinel.files.items())
    splits = {
        name: PairRows(Path(receipt.path) / f"{name}.parquet", receipt.places)
        for name in ("train", "eval")
    }
    drawn = [item for rows in splits.values() for item in rows]
    published = {(pair.images, pair.chosen, pair.rejected) for pair in PreferenceDataset(cache)}
    assert len(drawn) == 40 and {len(rows) > 5 for rows in splits.values()} == {True}
    assert {
        (tuple(item["env_extras"]["images"]), item["chosen"], item["rejected"]) for item in drawn
    } == published
    assert {item["env_extras"]["data_source"] for item in drawn} == {"colours", "shapes"}
    assert all(Path(image).is_file() for item in drawn for image in item["env_extras"]["images"])


def test_a_cache_that_moved_is_a_hit_and_one_that_changed_is_refused(
    cache: Path, tmp_path: Path
) -> None:
    first = prepare_pairs(halves(cache), tmp_path / "data", tmp_path / "cache")
    moved = tmp_path / "elsewhere" / cache.name
    shutil.copytree(cache, moved)
    again = prepare_pairs(halves(moved), tmp_path / "data", tmp_path / "cache")
    assert (again.hit, again.run_hash) == (True, first.run_hash)
    uids = PairRows(Path(again.path) / "train.parquet", again.places).uids
    assert uids == PairRows(Path(first.path) / "train.parquet", first.places).uids
    annotation = next(moved.glob("MMPR/annotations/*.jsonl"))
    annotation.write_text(annotation.read_text().replace("It is", "It was"))
    with pytest.raises(DataError, match=r"colours|shapes|pairs|annotations"):
        PairRows(Path(again.path) / "train.parquet", again.places)


def test_no_question_is_both_trained_on_and_held_out(tmp_path: Path) -> None:
    rows = described_scenes(60, seed=3)
    twice = rows + [row | {"rejected": "It is gone."} for row in rows]
    file, other = tmp_path / "pairs.jsonl", tmp_path / "other.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in twice))
    other.write_text("".join(json.dumps(row) + "\n" for row in rows[:5]))
    split = prepare_pairs(halves(file), tmp_path / "data", tmp_path / "cache")
    asked = {
        name: {
            item["prompt"][0]["content"]
            for item in PairRows(Path(split.path) / f"{name}.parquet", split.places)
        }
        for name in ("train", "eval")
    }
    assert not asked["train"] & asked["eval"] and len(asked["train"]) + len(asked["eval"]) == 60
    apart = prepare_pairs(
        recipe_of([str(file)], [str(other)]), tmp_path / "data", tmp_path / "cache"
    )
    assert (apart.num_train_rows, apart.num_eval_rows, apart.dropped["also held out"]) == (
        110,
        5,
        10,
    )
    assert apart.places == {sha256_file(one): str(one) for one in (file, other)}


def test_a_bad_row_is_named_or_dropped_and_counted(tmp_path: Path) -> None:
    rows = [*described_scenes(30, seed=1), {"question": "?", "chosen": "same", "rejected": "same "}]
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    held_out = {"fixture": "text", "num_rows": 8, "seed": 9}
    with pytest.raises(
        DataError, match=r"pairs.jsonl:31 field rejected: chosen and rejected are equal"
    ):
        prepare_pairs(recipe_of([str(file)], [held_out]), tmp_path / "data", tmp_path / "cache")
    dropping = recipe_of([str(file)], [held_out], on_invalid="drop", max_bad_fraction=0.1)
    assert not plan_pairs(dropping, tmp_path / "data", tmp_path / "cache").hit
    receipt = prepare_pairs(dropping, tmp_path / "data", tmp_path / "cache")
    assert (receipt.num_train_rows, receipt.dropped["invalid"]) == (30, 1)
    assert plan_pairs(dropping, tmp_path / "data", tmp_path / "cache").hit


def test_every_setting_that_decides_the_pairs_gives_another_preparation(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in described_scenes(10, seed=1)))
    source = {"path": str(file), "split": "train", "eval_fraction": 0.3}
    held_out = source | {"split": "eval"}
    recipes = [
        recipe_of([source], [held_out]),
        recipe_of([source], [held_out], on_invalid="drop"),
        recipe_of([source], [held_out], on_invalid="drop", max_bad_fraction=0.1),
        recipe_of([source | {"size": 3}], [held_out]),
        recipe_of([source], [held_out | {"size": 3}]),
        recipe_of([source | {"eval_fraction": 0.4}], [held_out]),
        recipe_of([source], [held_out | {"eval_fraction": 0.4}]),
        recipe_of([held_out], [source]),
    ]
    found = {plan_pairs(one, tmp_path / "data", tmp_path / "cache").run_hash for one in recipes}
    assert len(found) == len(recipes)


def test_described_scenes_are_seeded_and_their_answers_differ() -> None:
    rows = described_scenes(200, seed=5)
    assert rows == described_scenes(200, seed=5) != described_scenes(200, seed=6)
    assert len({row["question"] for row in rows}) == 200
    for row in rows:
        told = row["question"].partition(".")[0]
        words = [row[side].rstrip(".").split()[-1] for side in ("chosen", "rejected")]
        assert words[0] != words[1] and all(word in told for word in words), (
            "both answers are about the scene"
        )


def test_pairs_of_a_folder_a_glob_and_another_system_are_trained_on(tmp_path: Path) -> None:
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "one?"}]
    talk += [{"role": "assistant", "content": "1"}, {"role": "user", "content": "two?"}]

    def trl(index: int) -> dict[str, Any]:
        head = [*talk[:-1], {"role": "user", "content": f"{index}?"}]
        yes, no = ({"role": "assistant", "content": word} for word in ("yes", "no"))
        return {"chosen": [*head, yes], "rejected": [*head, no]}

    folder = tmp_path / "pairs"
    folder.mkdir()
    for name, first in (("train-0", 0), ("train-1", 3), ("test-0", 6)):
        lines = [json.dumps(trl(index)) + "\n" for index in range(first, first + 3)]
        (folder / f"{name}.jsonl").write_text("".join(lines))
    recipe = recipe_of([{"path": str(folder), "size": 4}], [f"{folder}:test"])
    receipt = prepare_pairs(recipe, tmp_path / "data", tmp_path / "cache")
    rows = PairRows(Path(receipt.path) / "train.parquet", receipt.places)
    assert [item["prompt"][-1]["content"] for item in rows] == ["0?", "1?", "2?", "3?"]
    assert rows[0]["prompt"][:3] == talk[:3]
    assert (rows[0]["chosen"], rows[0]["rejected"], receipt.num_eval_rows) == ("yes", "no", 3)
    globbed = recipe_of([str(folder / "train-*.jsonl")], [f"{folder}:test"])
    assert prepare_pairs(globbed, tmp_path / "data", tmp_path / "cache").num_train_rows == 6


def test_a_folder_that_is_no_cache_and_has_no_rows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    recipe = recipe_of([str(tmp_path / "empty")], [{"fixture": "text", "num_rows": 8}])
    with pytest.raises(DataError, match="no data file in this folder"):
        prepare_pairs(recipe, tmp_path / "data", tmp_path / "cache")
