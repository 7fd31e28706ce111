"""Every line of the table at the head of docs/data.md, run with rows of the kind that it names."""

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest
import yaml
from typer.testing import CliRunner

from flows.cli import app
from rl_core.data.check.files import check_files
from rl_core.data.prepare.pairs import prepare_pairs
from rl_core.data.prepare.row_files import row_files
from rl_core.data.read.recipe_files import check_settings
from rl_core.runs.recipes import parse_recipe
from rl_core.runtime.home import Home
from schemas.recipe import Recipe
from tests.data.read.test_formats import zstd
from tests.data.read.test_sources import COMMIT, add_dataset

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("|---|---|\n")[2].partition("\n\n")[0]
LINES: dict[str, str] = dict(re.findall(r"^\| (.+?) \| `(.+)` \|$", TABLE, flags=re.MULTILINE))


def message(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


def row(text: str, **more: Any) -> dict[str, Any]:
    return {"prompt": [message("user", text)], "reward_spec": {"ground_truth": "4"}, **more}


def lines(*rows: Any) -> str:
    return "".join(json.dumps(one) + "\n" for one in rows)


def table(*rows: Any) -> datasets.Dataset:
    return datasets.Dataset.from_list(list(rows))


TRAIN, TEST = row("2+2?", env_class="gsm8k"), row("3+1?", env_class="gsm8k")
VERL = {"prompt": [message("user", "2+2?")], "reward_model": {"ground_truth": "4", "style": "rule"}}
TRL = {
    "chosen": [message("user", "2+2?"), message("assistant", "4")],
    "rejected": [message("user", "2+2?"), message("assistant", "5")],
}
OPENAI = {
    "input": {"messages": [message("system", "Be brief."), message("user", "3+1?")]},
    "preferred_output": [message("assistant", "4")],
    "non_preferred_output": [message("assistant", "5")],
}
TESTS = {"inputs": ["2\n"], "outputs": ["4\n"]}


def skyrl() -> None:
    table(TRAIN).to_parquet("train.parquet")
    table(TEST).to_parquet("test.parquet")


def json_lines() -> None:
    table(TRAIN).to_json("rows.json")
    Path("more.ndjson").write_text(lines(row("1+3?", env_class="gsm8k")))
    Path("packed.jsonl.gz").write_bytes(
        gzip.compress(lines(row("5-1?", env_class="aime")).encode())
    )
    Path("test.jsonl.zst").write_bytes(zstd(lines(TEST).encode()))


def verl() -> None:
    table(VERL).to_parquet("verl.parquet")
    table({**VERL, "prompt": TEST["prompt"]}).to_parquet("verl-test.parquet")


def folder() -> None:
    Path("folder/data").mkdir(parents=True)
    table(TRAIN).to_parquet("folder/data/train-00000-of-00001.parquet")
    table(TEST).to_parquet("folder/data/test-00000-of-00001.parquet")


def saved() -> None:
    datasets.DatasetDict({"train": table(TRAIN), "test": table(TEST)}).save_to_disk("saved")


def hub() -> None:
    asked = {"train": "2+2?", "test": "3+1?"}
    files = {
        f"main/{split}.jsonl": lines({"question": text, "answer": "So.\n#### 4"})
        for split, text in asked.items()
    }
    splits = [{"split": split, "path": f"main/{split}.jsonl"} for split in asked]
    card = yaml.safe_dump({"configs": [{"config_name": "main", "data_files": splits}]})
    add_dataset(
        Path("hub").absolute(), "openai/gsm8k", COMMIT, {"README.md": f"---\n{card}---\n", **files}
    )


def csv() -> None:
    Path("table.csv").write_text('question,answer\n"2+2, is?",4\n')
    Path("table.tsv").write_text("question\tanswer\n3+1?\t4\n")


def programs() -> None:
    for name, text in (("problems", "Double it."), ("problems-test", "Double that.")):
        spec = {"ground_truth": json.dumps(TESTS)}
        Path(f"{name}.jsonl").write_text(lines({**row(text), "reward_spec": spec}))


def conversations() -> None:
    turns = [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}]
    Path("theirs.json").write_text(json.dumps([{"conversations": turns}]))


def talks() -> None:
    said = [message("user", "2+2?"), message("assistant", "4")]
    shared = [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}]
    alpaca = {"instruction": "Add.", "input": "2+2", "output": "4"}
    trl = {"prompt": "2+2?", "completion": "4"}
    Path("talks.jsonl").write_text(lines({"messages": said}, {"conversations": shared}, trl))
    Path("held-out.jsonl").write_text(lines(alpaca))


def pairs() -> None:
    Path("pairs").mkdir()
    Path("pairs.jsonl").write_text(lines(TRL))
    Path("pairs/test-0.jsonl").write_text(lines(OPENAI))


def kto() -> None:
    Path("pairs.jsonl").write_text(lines(TRL))
    rows = [{"prompt": "1+3?", "completion": one, "label": one == "4"} for one in ("4", "5")]
    Path("kto.jsonl").write_text(lines(*rows))


def prompts() -> None:
    Path("prompts.txt").write_text("A forest at dawn.\n")
    Path("more.txt").write_text("A desert at noon.\n")


KINDS: list[Callable[[], None]] = [
    *(skyrl, json_lines, verl, folder, saved, hub, csv, programs, conversations, talks, pairs, kto),
    prompts,
]


def recipe_of(typed: str) -> Recipe:
    said = yaml.safe_load(typed)
    return parse_recipe({"name": "typed", "model": {"path": "m"}, **said})


@pytest.mark.parametrize(
    ("have", "make"), list(zip(LINES, KINDS, strict=True)), ids=[kind.__name__ for kind in KINDS]
)
def test_what_the_page_says_to_type_takes_the_rows(
    have: str, make: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RL_TRAIN_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    make()
    typed = LINES[have].replace("\\|", "|")  # as tables write it
    if typed.startswith("rl-train "):
        result = CliRunner().invoke(app, typed.split()[1:], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        typed = "data: {train: [rows.jsonl], eval: [rows.jsonl]}"
    recipe, home = recipe_of(typed), Home.default()
    train, held_out = row_files(recipe, home)
    folders: dict[str, Any] = {"rejects_dir": home.data / "rejects", "memo_dir": home.data / "memo"}
    report = check_files([*train, *held_out], check_settings(recipe), **folders)
    assert (report.num_rejected, report.num_accepted >= 1) == (0, True), report.examples
    if recipe.has_pairs:
        receipt = prepare_pairs(recipe, home.data, home.cache)
        assert (receipt.num_train_rows, receipt.num_eval_rows) == (1, 1)
    else:
        assert train and held_out
