"""Prompts of diffusion models from a recipe's data to prepared rows: what is kept, what is refused,
what is a hit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from rl_core.builtin.data.digit_prompts import digit_prompts, draw_prompts, wordings
from rl_core.builtin.data.make_fixture import make_fixture
from rl_core.builtin.data.prompt_files import (
    DigitsSpec,
    LetteringSpec,
    materialise_prompts,
    planned_prompts,
)
from rl_core.data.check.files import check_files
from rl_core.data.prepare.media_prompts import MediaSettings, plan_media, prepare_media
from rl_core.data.read.media_prompt_files import planned_prompt_files, prompt_files
from rl_core.data.read.readers import raw_values
from rl_core.data.read.recipe_files import check_settings
from rl_core.data.stages.run import load_stage, prepare_stage
from rl_core.data.store.prompt_rows import load_prepared
from rl_core.errors import DataError, RecipeError
from rl_core.rewards.scorers.digit import named_digits
from rl_core.rewards.scorers.ocr import quoted
from rl_core.runs.recipes import parse_recipe
from schemas.recipe import Recipe


class Words:
    """Counts words, and looks at no more than eight."""

    limit = 8

    def lengths(self, texts: Sequence[str]) -> list[int]:
        return [len(text.split()) for text in texts]


def recipe(train: Any, held_out: Any, **data: Any) -> Recipe:
    values = {"train": [train], "eval": [held_out], **data}
    model = {"path": "embedded:tiny-sd3"}
    return Recipe.model_validate(
        {"name": "digits", "domain": "diffusion", "model": model, "data": values}
    )


def settings(made: Recipe, folder: Path) -> MediaSettings:
    return MediaSettings(made, "words", folder / "cache", folder / "memo")


def prepare(made: Recipe, folder: Path):
    return prepare_media(prompt_files(made, folder / "data"), settings(made, folder), Words)


def items(receipt: Any, split: str) -> list[dict[str, Any]]:
    return load_prepared(Path(receipt.path) / f"{split}.parquet")


def write(path: Path, rows: Sequence[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_held_out_wordings_are_made_of_pieces_that_are_trained_on():
    train, held_out = set(wordings("train")), set(wordings("eval"))
    assert not train & held_out and 10 < len(held_out) < len(train)
    assert {"{}", "the digit {}", "a photo of the digit {}"} <= train
    words = {word for wording in train for word in wording.replace(",", " ").split()}
    assert {word for wording in held_out for word in wording.replace(",", " ").split()} <= words


def test_every_digit_is_asked_for_as_often_as_any_other_and_named_once():
    drawn = draw_prompts("train", 50, seed=3)
    assert [prompt.digit for prompt in drawn] == [*range(10)] * 5 and len(
        {prompt.text for prompt in drawn}
    ) == 50
    for prompt in digit_prompts("train"):
        assert named_digits(prompt.text) == {prompt.digit}
        assert bool(quoted(prompt.text)) == prompt.is_quoted
    with pytest.raises(
        DataError, match=r"5000 prompts asked for, the split train has \d+; lower the number"
    ):
        draw_prompts("train", 5000, seed=0)


@pytest.mark.parametrize("kind", [DigitsSpec, LetteringSpec])
def test_made_prompts_are_the_same_each_time_and_splits_share_none(kind: Any, tmp_path: Path):
    name = "digits" if kind is DigitsSpec else "lettering"
    train, held_out = kind(**{name: 40, "seed": 1}), kind(**{name: 40, "seed": 1, "split": "eval"})
    path = materialise_prompts(train, tmp_path)
    assert path == planned_prompts(train, tmp_path)
    assert path.read_bytes() == materialise_prompts(train, tmp_path / "again").read_bytes()
    asked = [
        {raw.value["prompt"] for raw in raw_values(materialise_prompts(one, tmp_path))}
        for one in (train, held_out)
    ]
    assert len(asked[0]) == len(asked[1]) == 40 and not asked[0] & asked[1]
    if kind is LetteringSpec:
        assert all(len(quoted(text)) == 1 for text in asked[0])


def test_digits_of_a_recipe_become_items_with_stable_ids(tmp_path: Path):
    made = recipe({"digits": 30, "seed": 1}, {"digits": 20, "split": "eval"}, max_prompt_length=8)
    planned, first = planned_prompt_files(made, tmp_path / "data")
    assert first == "the prompts would be made first" and not planned["train"][0].exists()
    receipt = prepare(made, tmp_path)
    assert receipt.num_train_rows + receipt.num_eval_rows + receipt.dropped["too_long"] == 50
    train = items(receipt, "train")
    assert set(train[0]) == {"prompt", "metadata", "media_refs", "uid"} and train[0][
        "metadata"
    ] == {"digit": 0}
    again = prepare(recipe({"digits": 10, "seed": 1}, {"digits": 20, "split": "eval"}), tmp_path)
    assert {item["uid"] for item in items(again, "train")} <= {
        row.value["prompt_id"]
        for row in raw_values(prompt_files(made, tmp_path / "data")["train"][0])
    }
    assert prepare(made, tmp_path).hit
    assert plan_media(planned, settings(made, tmp_path)).hit


def test_prompts_beyond_what_the_encoders_read_are_dropped_and_counted(tmp_path: Path):
    long = "a very long prompt that no encoder reads to its end"
    file = write(tmp_path / "train.jsonl", [{"prompt": "short"}, {"prompt": long}])
    held_out = write(tmp_path / "eval.jsonl", ["other"])
    receipt = prepare(recipe(str(file), str(held_out), max_prompt_length=100), tmp_path)
    assert receipt.dropped["too_long"] == 1
    assert [item["uid"] for item in items(receipt, "train")] == ["train.jsonl:0"]
    only_long = write(tmp_path / "long.jsonl", [long])
    with pytest.raises(
        DataError, match=r"no train prompt is left: 1 have more than 8 tokens .*model's own limit 8"
    ):
        prepare(recipe(str(only_long), str(held_out)), tmp_path)


def test_a_prompt_of_exactly_the_lower_limit_is_kept(tmp_path: Path):
    prompts = [" ".join(["word"] * number) for number in (4, 5, 8, 9)]
    file, held_out = (
        write(tmp_path / "train.jsonl", prompts),
        write(tmp_path / "eval.jsonl", ["other"]),
    )
    for limit, kept in ((4, prompts[:1]), (5, prompts[:2]), (100, prompts[:3])):
        receipt = prepare(recipe(str(file), str(held_out), max_prompt_length=limit), tmp_path)
        assert [item["prompt"] for item in items(receipt, "train")] == kept


def test_every_setting_that_decides_the_prompts_gives_another_preparation(tmp_path: Path):
    paths = [str(write(tmp_path / f"{name}.jsonl", [name])) for name in ("train", "eval")]
    changes: list[dict[str, Any]] = [
        {},
        {"max_prompt_length": 9},
        {"on_invalid": "drop"},
        {"on_invalid": "drop", "max_bad_fraction": 0.1},
    ]
    recipes = [recipe(*paths, **changed) for changed in changes]
    asked = [settings(made, tmp_path) for made in recipes]
    asked.append(replace(asked[0], tokenizer_id="other words"))
    files = prompt_files(recipes[0], tmp_path / "data")
    assert len({plan_media(files, one).run_hash for one in asked}) == len(asked)
    elsewhere = replace(asked[0], cache_root=tmp_path / "there", memo_dir=tmp_path / "notes")
    assert plan_media(files, elsewhere).run_hash == plan_media(files, asked[0]).run_hash


@pytest.mark.parametrize("name", ["a.txt", "a.json", "a.jsonl", "a.parquet"])
def test_files_of_every_reader_become_items(name: str, tmp_path: Path):
    path = tmp_path / name
    if name.endswith(".parquet"):
        import pandas as pd

        pd.DataFrame({"prompt": ["one", "two"]}).to_parquet(path)
    else:
        path.write_text(
            {"a.txt": "one\n\ntwo\n", "a.json": '["one", "two"]', "a.jsonl": '"one"\n"two"\n'}[name]
        )
    held_out = write(tmp_path / "eval.jsonl", [{"caption": "three", "topic": "numbers"}])
    receipt = prepare(recipe(str(path), str(held_out)), tmp_path)
    assert [(item["prompt"], item["uid"]) for item in items(receipt, "train")] == [
        ("one", f"{name}:0"),
        ("two", f"{name}:1"),
    ]
    assert items(receipt, "eval") == [
        {
            "prompt": "three",
            "metadata": {"topic": "numbers"},
            "media_refs": [],
            "uid": "eval.jsonl:0",
        }
    ]


def test_a_condition_image_travels_by_path_and_digest_and_its_content_decides(tmp_path: Path):
    shown = {"modality": "image", "role": "condition", "uri": "frame.png"}
    file = write(
        tmp_path / "rows" / "train.jsonl", [{"prompt": "let it snow", "media_refs": [shown]}]
    )
    held_out = write(tmp_path / "eval.jsonl", ["other"])
    made = recipe(str(file), str(held_out))
    with pytest.raises(
        DataError,
        match=r"train\.jsonl:1 field media_refs\[0\].uri: no such media file, .*frame\.png",
    ):
        prepare(made, tmp_path)
    Image.new("RGB", (8, 8), "white").save(tmp_path / "rows" / "frame.png")
    first = prepare(made, tmp_path)
    (ref,) = items(first, "train")[0]["media_refs"]
    assert ref["uri"] == str(tmp_path / "rows" / "frame.png") and len(ref["sha256"]) == 64
    Image.new("RGB", (8, 8), "black").save(tmp_path / "rows" / "frame.png")
    second = prepare(made, tmp_path)
    assert not second.hit and second.run_hash != first.run_hash
    assert "condition images changed" in second.explanation
    assert items(second, "train")[0]["media_refs"][0]["sha256"] != ref["sha256"]


def test_media_that_no_loader_takes_is_refused_by_name(tmp_path: Path):
    sound = {"modality": "audio", "role": "condition", "uri": "song.wav"}
    file = write(tmp_path / "train.jsonl", [{"prompt": "dance", "media_refs": [sound]}])
    held_out = write(tmp_path / "eval.jsonl", ["other"])
    with pytest.raises(
        NotImplementedError, match=r"train\.jsonl:1 field media_refs\[0\].*modality='audio'"
    ):
        prepare(recipe(str(file), str(held_out)), tmp_path)


def test_held_out_prompts_are_never_trained_on(tmp_path: Path):
    file = write(tmp_path / "train.jsonl", ["one", " two ", "three"])
    held_out = write(tmp_path / "eval.jsonl", ["two"])
    made = recipe(str(file), str(held_out))
    with pytest.raises(
        DataError,
        match=r"train\.jsonl:2 field prompt: also a held-out row; .* not in .*eval\.jsonl:1",
    ):
        prepare(made, tmp_path)
    report = check_files(
        [file],
        check_settings(made),
        held_out=[held_out],
        rejects_dir=tmp_path / "rejects",
        memo_dir=tmp_path / "memo",
    )
    assert report.rejected_by_reason == {"also a held-out row": 1} and report.num_rows == 4
    dropping = recipe(str(file), str(held_out), on_invalid="drop", max_bad_fraction=0.5)
    receipt = prepare(dropping, tmp_path)
    assert [item["prompt"] for item in items(receipt, "train")] == [
        "one",
        "three",
    ] and receipt.dropped["invalid"] == 1


def test_two_prompts_of_one_id_are_refused(tmp_path: Path):
    rows = [{"prompt": "one", "prompt_id": "a"}, {"prompt": "two", "prompt_id": "a"}]
    held_out = write(tmp_path / "eval.jsonl", ["other"])
    made = recipe(str(write(tmp_path / "train.jsonl", rows)), str(held_out))
    with pytest.raises(
        DataError,
        match=r"train\.jsonl:2 field prompt_id: repeated id, got 'a'; .* row 1 has this one",
    ):
        prepare(made, tmp_path)


def test_files_of_one_name_in_two_folders_have_ids_of_their_own(tmp_path: Path):
    for folder, text in (("a", "a red kite"), ("b", "a blue kite"), ("held", "a green kite")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "rows.txt").write_text(f"{text}\n")
    train = [str(tmp_path / folder / "rows.txt") for folder in ("a", "b")]
    made = recipe(train[0], str(tmp_path / "held" / "rows.txt"))
    made = made.model_copy(update={"data": made.data.model_copy(update={"train": train})})
    receipt = prepare(made, tmp_path)
    rows = load_prepared(Path(receipt.path) / "train.parquet")
    assert [(row["uid"], row["prompt"]) for row in rows] == [
        ("rows.txt:0", "a red kite"),
        ("rows.txt#2:0", "a blue kite"),
    ]
    twice = made.model_copy(
        update={"data": made.data.model_copy(update={"train": [train[0], train[0]]})}
    )
    with pytest.raises(RecipeError, match=r"data\.train: .*rows\.txt is named 2 times"):
        prepare(twice, tmp_path)


def test_a_published_cache_of_the_stage_gives_each_split_its_own_file(tmp_path: Path):
    raw = make_fixture(tmp_path / "fixture", num_rows=6)["diffusion"]
    write(
        raw / "held_out.jsonl",
        [{"prompt": "A green circle on grey, from above.", "prompt_id": "held-out"}],
    )
    options = ["source_uri=null", "eval_prompts=[held_out.jsonl]"]
    prepare_stage(
        load_stage("diffusion", options, input_dir=raw, output_dir=tmp_path / "published")
    )
    receipt = prepare(recipe(str(tmp_path / "published"), str(tmp_path / "published")), tmp_path)
    assert (receipt.num_train_rows, receipt.num_eval_rows) == (6, 1)
    assert [len(item["media_refs"]) for item in items(receipt, "train")] == [0, 1] * 3


def test_a_misspelt_key_of_a_block_is_refused_with_the_nearest_one():
    values = {"train": [{"digits": 10, "quotd": True}], "eval": [{"digits": 10, "split": "eval"}]}
    with pytest.raises(RecipeError, match=r"data\.train\.0\.quotd.*quoted"):
        parse_recipe(
            {
                "name": "digits",
                "domain": "diffusion",
                "model": {"path": "embedded:tiny-sd3"},
                "algorithm": {"name": "flow_grpo"},
                "rewards": [{"name": "digit"}],
                "data": values,
            }
        )
