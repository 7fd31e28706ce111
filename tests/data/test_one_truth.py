"""Whatever is wrong with a row: `rl-train validate`, `--dry-run`, the tasks of a run and the row's
own environment say the same about it."""

import inspect
import json
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flows.cli import app
from rl_core.data.check import first_rows
from rl_core.data.check.batches import checked_batches
from rl_core.data.check.files import check_files
from rl_core.data.order.pair_rows import PairRows
from rl_core.data.prepare.media_prompts import MediaSettings, prepare_media
from rl_core.data.prepare.pairs import prepare_pairs
from rl_core.data.prepare.prompts import prepare_cache
from rl_core.data.read.media_prompt_files import prompt_files
from rl_core.data.read.recipe_files import check_settings, preparation_settings
from rl_core.data.stages.run import load_stage, prepare_stage
from rl_core.data.store.pair_places import open_places
from rl_core.data.store.prompt_rows import load_prepared
from rl_core.envs import make
from rl_core.errors import DataError
from rl_core.runs.recipes import dump_recipe, parse_recipe
from rl_core.runtime.home import Home
from schemas.recipe import Recipe
from schemas.rows.contract import SchemaName
from tests.data.damage import asked, damaged_rows, write_rows

FAR = 10**6
"""More tokens than any row here has."""
DOMAINS: dict[SchemaName, dict[str, Any]] = {
    SchemaName.PROMPT: {"model": {"path": "m"}},
    SchemaName.MEDIA: {
        "domain": "diffusion",
        "model": {"path": "embedded:tiny-sd3"},
        "algorithm": {"name": "flow_grpo"},
        "rewards": [{"name": "ocr"}],
    },
    SchemaName.PREFERENCE: {
        "domain": "preference",
        "model": {"path": "m"},
        "algorithm": {"name": "mpo"},
    },
}
HELD_OUT: dict[SchemaName, Any] = {
    SchemaName.PROMPT: asked("gsm8k", "9", "8+1?"),
    SchemaName.MEDIA: {"prompt": "a cup"},
    SchemaName.PREFERENCE: {"question": "8+1?", "chosen": "9", "rejected": "8"},
}
Found = dict[int, list[tuple[str, str]]]
"""Field and reason of each problem, by row."""


class Words:
    """Counts words, and looks at all of them."""

    limit = FAR

    def lengths(self, texts: Sequence[str]) -> list[int]:
        return [len(text.split()) for text in texts]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("RL_TRAIN_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(first_rows, "NUM_ROWS", FAR)
    file = tmp_path / "spider/database/shop/shop.sqlite"
    file.parent.mkdir(parents=True)
    sqlite3.connect(file).close()
    return Home.default()


def recipe_of(schema: SchemaName, file: Path, on_invalid: str = "drop") -> Recipe:
    held_out = file.with_name("held-out.jsonl")
    held_out.write_text(json.dumps(HELD_OUT[schema]) + "\n")
    values: dict[str, Any] = {
        "name": "one-truth",
        "data": {
            "train": [str(file)],
            "eval": [str(held_out)],
            "on_invalid": on_invalid,
            "max_bad_fraction": float(on_invalid == "drop"),
            "max_prompt_length": FAR,
        },
        "validation": {"oracle_rows": 0},
        **DOMAINS[schema],
    }
    if schema is SchemaName.PROMPT:
        folder = next(one for one in file.parents if (one / "spider").is_dir())
        values["environments"] = {"text2sql": {"db_path": str(folder)}}
    return parse_recipe(values)


def listed(rejections: Any) -> Found:
    found: Found = {}
    for one in rejections:
        found.setdefault(one["row"], []).append((one["field"], one["reason"]))
    return found


def train_file(recipe: Recipe) -> Path:
    (entry,) = recipe.data.train
    return Path(str(entry))


def validated(recipe: Recipe, home: Home) -> Found:
    folders: dict[str, Any] = {"rejects_dir": home.data / "rejects", "memo_dir": home.data / "memo"}
    report = check_files([train_file(recipe)], check_settings(recipe), **folders)
    lines = Path(report.rejects_path or "").read_text().splitlines()
    return listed(map(json.loads, lines))


def planned(recipe: Recipe) -> Found:
    _, found = first_rows.check_first_rows([train_file(recipe)], check_settings(recipe))
    return listed(one.model_dump() for one in found)


def prepared_media(recipe: Recipe, home: Home) -> set[int]:
    settings = MediaSettings(recipe, "words", home.cache, home.data / "memo")
    receipt = prepare_media(prompt_files(recipe, home.data), settings, Words)
    return {item["metadata"]["n"] for item in load_prepared(Path(receipt.path) / "train.parquet")}


def prepared_pairs(recipe: Recipe, home: Home) -> set[int]:
    receipt = prepare_pairs(recipe, home.data, home.cache)
    path = Path(receipt.path) / "train.parquet"
    pairs = PairRows(path, receipt.places)._pairs[0]
    return {pairs.number_of(int(row)) for row in open_places(path).row_N}


KINDS: list[tuple[SchemaName, Callable[[Recipe, Home], set[int]]]] = [
    (SchemaName.MEDIA, prepared_media),
    (SchemaName.PREFERENCE, prepared_pairs),
]


@pytest.mark.parametrize(("schema", "prepared"), KINDS, ids=[name for name, _ in KINDS])
def test_media_and_pairs_are_refused_by_all_or_by_none(
    schema: SchemaName, prepared: Callable[[Recipe, Home], set[int]], home: Home, tmp_path: Path
) -> None:
    rows = damaged_rows(schema, 0, 200)
    file = write_rows(tmp_path / "rows.jsonl", rows)
    recipe = recipe_of(schema, file)
    found = validated(recipe, home)
    assert len(found) > 100 and planned(recipe) == found
    assert prepared(recipe, home) == {*range(1, len(rows) + 1)} - found.keys()
    # Each kind of problem, alone in a file, ends a run that drops nothing with the same words.
    first = {problems[0]: number for number, problems in reversed(found.items())}
    for (field, reason), number in first.items():
        pair = [rows[number - 1]] * 2 if reason == "repeated id" else [rows[number - 1]]
        strict = recipe_of(schema, write_rows(tmp_path / f"row-{number}.jsonl", pair), "fail")
        with pytest.raises((DataError, NotImplementedError)) as refused:
            prepared(strict, home)
        assert f"field {field}: {reason}" in str(refused.value)


@pytest.mark.slow
def test_prompts_are_refused_by_all_or_by_none_and_no_environment_fails_on_the_others(
    home: Home, tmp_path: Path, tokenizer: Any
) -> None:
    rows = damaged_rows(SchemaName.PROMPT, 0, 150)
    file = write_rows(tmp_path / "rows.jsonl", rows)
    recipe = recipe_of(SchemaName.PROMPT, file)
    found = validated(recipe, home)
    assert len(found) > 100 and planned(recipe) == found
    settings = preparation_settings(recipe, home, "words")
    assert settings.trials is not None
    with check_settings(recipe).row_trials() as trials:
        batches = checked_batches(
            file,
            allowed_env_classes=settings.allowed_env_classes,
            default_env_class=None,
            trials=trials,
        )
        assert listed(one.model_dump() for batch in batches for one in batch.rejections) == found
    receipt = prepare_cache([file], [], settings, tokenizer=tokenizer)
    items = load_prepared(Path(receipt.path) / "train.parquet")
    kept = {item["env_extras"]["n"] for item in items}
    assert kept == {*range(1, len(rows) + 1)} - found.keys()
    for item in items:
        name = item["env_class"]
        env = make(name, recipe.environments.get(name), item["env_extras"])
        env.init(item["prompt"])
        turn = env.step("")
        if inspect.iscoroutine(turn):
            turn.close()
        env.close()


@pytest.mark.slow
@pytest.mark.parametrize("schema", [SchemaName.PROMPT, SchemaName.MEDIA, SchemaName.PREFERENCE])
def test_the_commands_and_the_task_count_the_same_rows(
    schema: SchemaName, home: Home, tmp_path: Path
) -> None:
    from prefect.logging import disable_run_logger

    from tasks.validate_data import validate_data

    rows = [row for row in damaged_rows(schema, 1, 20) if row.get("env_class") in (None, "gsm8k")]
    file = write_rows(tmp_path / "rows.jsonl", rows)
    recipe = recipe_of(schema, file)
    mine = tmp_path / "mine.yaml"
    mine.write_text(dump_recipe(recipe))
    refused = len(validated(recipe, home))
    done = CliRunner().invoke(app, ["validate", "--recipe", str(mine), "--format", "json"])
    report = json.loads(done.stdout)
    assert report["num_rows"] - report["num_accepted"] == refused < report["num_rows"]
    with disable_run_logger():
        assert validate_data.fn(recipe.model_dump(mode="json")).num_rejected == refused
    plan = CliRunner().invoke(app, ["run", str(mine), "--dry-run"], env={"COLUMNS": "200"})
    assert f"{refused} of the first {report['num_rows']} rows would be refused" in plan.output


def test_response_rows_are_refused_by_validation_and_by_the_stage_that_publishes_them(
    home: Home, tmp_path: Path
) -> None:
    rows = damaged_rows(SchemaName.RESPONSE, 0, 200)
    for row in rows:
        row.setdefault("expected_answer", "5")
    raw = tmp_path / "raw"
    raw.mkdir()
    file = write_rows(raw / "rows.jsonl", rows)
    folders: dict[str, Any] = {"rejects_dir": home.data / "rejects", "memo_dir": home.data / "memo"}
    settings = replace(
        check_settings(recipe_of(SchemaName.PROMPT, file)), schema=SchemaName.RESPONSE, trials=None
    )
    report = check_files([file], settings, **folders)
    (raw / "data_blend_raw.json").write_text(
        json.dumps({"datasets": [{"name": "mine", "path": "rows.jsonl", "weight": 1.0}]})
    )
    made = prepare_stage(
        load_stage(
            "text",
            ["on_invalid=drop", "max_bad_fraction=1"],
            input_dir=raw,
            output_dir=tmp_path / "text",
        )
    )
    shards = Path(made.output).rglob("*.jsonl")
    published = {json.loads(line)["n"] for one in shards for line in one.read_text().splitlines()}
    refused = listed(map(json.loads, Path(report.rejects_path or "").read_text().splitlines()))
    assert len(refused) > 50 and published == {*range(1, len(rows) + 1)} - refused.keys()
