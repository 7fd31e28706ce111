"""Files, rows and settings that users brought and that once went wrong, each through the command or
function that a user reaches.

The numbers are those of the list in which they were collected. Cases that need a whole run or a
server have a test of their own, which `ELSEWHERE` names.
"""

import ast
import gzip
import io
import json
import unicodedata
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pytest
from PIL import Image
from typer.testing import CliRunner

from flows.cli import app
from rl_core.data import read_rows
from rl_core.data.read.archives import ArchiveLimits, list_members
from rl_core.data.read.sources import data_files
from rl_core.envs import make
from rl_core.errors import DataError, RecipeError
from rl_core.runs.recipes import load_recipe
from schemas.rows.media_checks import load_image, resolve_uri

TESTS = Path(__file__).parents[1]
ELSEWHERE = {
    "1 any name of a file or metric": [
        "e2e/test_any_name.py::test_a_run_takes_any_name",
        "tracking/test_names.py::test_ugly_names_are_kept_as_parameters_metrics_tags_and_datasets",
    ],
    "6 no network": ["data/read/test_hub_away.py::test_it_is_said_in_one_sentence"],
    "7 dead addresses": [
        "services/test_addresses.py::test_each_command_that_would_use_it_says_so_at_once"
    ],
    "8 validate is what the run does": [
        "data/test_one_truth.py::test_the_commands_and_the_task_count_the_same_rows"
    ],
    "13 links to folders": [
        "data/read/test_folders.py::test_folders_behind_links_are_entered_once"
    ],
    "16 text is no markup": ["flows/test_console.py::test_a_text_is_no_markup"],
    "17 addresses of rows": [
        "data/read/test_remote.py::test_a_file_a_folder_and_a_glob_of_a_bucket_are_validated",
        "data/read/test_remote.py::test_a_web_file_is_fetched_once_per_version",
    ],
    "22 beside the recipe": [
        "runs/test_recipe_paths.py::test_what_lies_beside_the_recipe_is_meant"
    ],
    "23 any name of a home": ["tracking/test_names.py::test_a_home_may_have_any_name"],
    "26 keys of a blend": ["data/stages/test_blend.py::test_sections_nobody_knows_are_refused"],
    "28 many subsets": [
        "data/stages/test_many_subsets.py::"
        "test_each_subset_gets_its_rows_and_an_archive_is_opened_once"
    ],
}
QUESTION = [{"role": "user", "content": "1+1?"}]
GOOD = {"prompt": QUESTION, "env_class": "gsm8k", "reward_spec": {"ground_truth": "2"}}
PAIR = {"prompt": "1+1?", "chosen": "2", "rejected": "3"}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RL_TRAIN_HOME", str(tmp_path / "home"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def rl_train(*arguments: str) -> str:
    """Return what a command says if it ends well, else its error."""
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "300"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        assert isinstance(result.exception, DataError | ValueError), result.exception
        return str(result.exception)
    return result.output


def lines(name: str, *rows: Any) -> str:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return name


def asked(*sources: str) -> list[str]:
    return [
        row["prompt"][0]["content"]
        for source in sources
        for file in data_files(source)
        for _, row in read_rows(file)
    ]


def converted_rows_pass_their_contract() -> None:
    row = {"prompt": QUESTION, "reward_model": {"ground_truth": "2"}}
    command = ["data", "convert", lines("a.jsonl", row), "b.jsonl", "--to", "prompt"]
    assert "1 prompt rows written" in rl_train(*command, "--env-class", "gsm8k")
    assert "1 of 1 rows are good" in rl_train("validate", "b.jsonl", "--schema", "prompt")
    other = {"messages": QUESTION, "reward_model": {"ground_truth": "2"}}
    command = ["data", "convert", lines("c.jsonl", other), "d.jsonl", "--prompt-key", "messages"]
    assert "field env_class: missing" in rl_train(*command) and not Path("d.jsonl").exists()


def set_but_empty_is_refused() -> None:
    lines("eval.jsonl", GOOD)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DATA_PATH", "")
        with pytest.raises(RecipeError, match=r"data\.train\[0\]: .*DATA_PATH"):
            load_recipe("smoke/text", ["data.train=['${oc.env:DATA_PATH}']"])
    assert "empty" in rl_train("validate", "")


def a_folder_is_the_split_that_is_asked_for() -> None:
    for split in ("train", "validation", "test"):
        lines(f"d/{split}/data.jsonl", {"prompt": split})
    assert asked("d") == ["train"] and asked("d:test") == ["test"]


def what_datasets_saves_is_read() -> None:
    table = datasets.Dataset.from_list([{"prompt": "saved"}])
    table.save_to_disk("one")
    datasets.DatasetDict({"train": table, "test": table}).save_to_disk("two")
    assert asked("one", "two", "two:test") == ["saved"] * 3


def pairs_of_others_are_read() -> None:
    answers = {
        name: [{"role": "assistant", "content": text}]
        for name, text in (("chosen", "2"), ("rejected", "3"))
    }
    both = {name: [*QUESTION, *said] for name, said in answers.items()}
    ranked = [{"rank": i, "completion": said} for i, said in enumerate(answers.values())]
    rows = [
        PAIR,
        {"prompt": QUESTION, **answers},
        both,
        {**PAIR, "system": "Brief."},
        {"context": QUESTION, "completions": ranked},
    ]
    assert "5 of 5 rows are good" in rl_train("validate", lines("pairs.jsonl", *rows))


def the_content_decides_and_not_the_suffix() -> None:
    datasets.Dataset.from_list([GOOD, GOOD]).to_json("train.json")
    assert "2 of 2 rows are good" in rl_train("validate", "train.json")


def a_picture_is_what_its_pixels_mean() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (8, 4)).save("lying.jpg", exif=exif)
    Image.new("RGBA", (2, 2), (0, 0, 0, 0)).save("clear.png")
    assert load_image("lying.jpg").size == (4, 8)
    assert load_image("clear.png").getpixel((0, 0)) == (255, 255, 255)


def bytes_after_a_pictures_end_are_no_damage() -> None:
    Image.new("RGB", (4, 4)).save("film.jpg")
    Path("film.jpg").write_bytes(Path("film.jpg").read_bytes() + b"\0film" * 99)
    ref = {"modality": "image", "role": "condition", "uri": "film.jpg"}
    rows = lines("rows.jsonl", {"prompt": "x", "media_refs": [ref]})
    assert "1 of 1 rows are good" in rl_train("validate", rows)


def categories_of_pandas_are_their_values() -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pylist([GOOD])
    role = pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), pa.array(["user"]))
    message = pa.StructArray.from_arrays([role, pa.array(["1+1?"])], ["role", "content"])
    prompt = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), message)
    pq.write_table(table.set_column(0, "prompt", prompt), "rows.parquet")
    assert "1 of 1 rows are good" in rl_train("validate", "rows.parquet")


def an_entry_of_a_list_is_set_by_its_number() -> None:
    assert load_recipe("smoke/text", ["data.train.0.size=50"]).data.train[0]["size"] == 50  # type: ignore[index]


def the_last_of_two_equal_keys_does_not_win() -> None:
    text = json.dumps(GOOD)[:-1] + ', "reward_spec": {"ground_truth": "999"}}'
    Path("rows.jsonl").write_text(text + "\n" + json.dumps(GOOD) + "\n")
    said = rl_train("validate", "rows.jsonl")
    assert "1 of 2 rows are refused" in said and "rows.jsonl:1" in said and "reward_spec" in said


def blanks_are_neither_prompt_nor_truth() -> None:
    blank = {**GOOD, "prompt": [{"role": "user", "content": " \n"}]}
    rows = lines("rows.jsonl", blank, {**GOOD, "reward_spec": {"ground_truth": ""}}, GOOD)
    said = rl_train("validate", rows)
    assert "2 of 3 rows are refused" in said
    assert "empty prompt" in said and "empty ground truth" in said


def a_file_is_written_over_only_when_told_to() -> None:
    lines("b.jsonl", {"mine": 1})
    command = ["data", "convert", lines("a.jsonl", GOOD)]
    assert "there is such a file already" in rl_train(*command, "b.jsonl")
    assert "1 prompt rows written" in rl_train(*command, "b.jsonl", "--force")
    assert "1 prompt rows written" in rl_train(*command, "new/folder/b.jsonl")


def names_in_archives_and_rows_meet_in_any_form() -> None:
    composed, apart = (
        unicodedata.normalize(form, "caf\u00e9/\u00fc.png") for form in ("NFC", "NFD")
    )
    for stored in (composed.encode(), apart.encode(), composed.encode("cp437")):
        (member,) = list_members(archive_of(stored), ArchiveLimits(), "/".join)
        assert unicodedata.normalize("NFC", member.name) == composed
    mixed = f"{composed.partition('/')[0]}/{apart.partition('/')[2]}"
    Path(mixed).parent.mkdir()
    Image.new("RGB", (4, 4)).save(mixed)
    assert {resolve_uri(form, Path()) for form in (composed, apart, mixed)} == {mixed}
    twice = archive_of(composed.encode(), apart.encode())
    with pytest.raises(DataError, match="clash: one would replace the other"):
        list_members(twice, ArchiveLimits(), "/".join)


def archive_of(*names: bytes) -> Path:
    """Write an archive whose names are these bytes, without the flag that says UTF-8."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for number, name in enumerate(names):
            archive.writestr(str(number) * len(name), b"x")
    content = packed.getvalue()
    for number, name in enumerate(names):
        content = content.replace(str(number).encode() * len(name), name)
    Path("names.zip").write_bytes(content)
    return Path("names.zip")


def rows_of_others_are_read() -> None:
    parts = [{"role": "developer", "content": [{"type": "text", "text": "Brief."}]}, *QUESTION]
    calls = [{"type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}]
    called = [
        *QUESTION,
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "content": "2"},
    ]
    tests = json.dumps({"inputs": ["1\n"], "outputs": ["2\n"]})
    rows = [
        {**GOOD, "prompt": parts},
        {**GOOD, "prompt": called},
        {**GOOD, "env_class": "lcb", "reward_spec": {"ground_truth": tests}},
    ]
    assert "3 of 3 rows are good" in rl_train("validate", lines("rows.ndjson", *rows))
    Path("rows.jsonl.gz").write_bytes(gzip.compress(json.dumps(GOOD).encode()))
    assert "1 of 1 rows are good" in rl_train("validate", "rows.jsonl.gz")
    verl = {
        "prompt": QUESTION,
        "data_source": "openai/gsm8k",
        "reward_model": {"ground_truth": "2"},
    }
    pd.DataFrame([verl]).to_parquet("verl.parquet")
    assert "may be 'gsm8k'" in rl_train("validate", "verl.parquet")


def a_path_may_climb_out_of_its_folder() -> None:
    Path("images").mkdir()
    Image.new("RGB", (4, 4)).save("images/a.png")
    ref = {"modality": "image", "role": "condition", "uri": "../images/a.png"}
    rows = lines("rows/a.jsonl", {"prompt": "x", "media_refs": [ref]})
    assert "1 of 1 rows are good" in rl_train("validate", rows)


def what_skyrls_callers_set_is_taken() -> None:
    extras = {"reward_spec": {"ground_truth": "2"}}
    assert make("aime", env_config={"env_class": "aime", "log_requests": True}, extras=extras)


CASES: dict[int, Callable[[], None]] = {
    2: converted_rows_pass_their_contract,
    3: set_but_empty_is_refused,
    4: a_folder_is_the_split_that_is_asked_for,
    5: what_datasets_saves_is_read,
    9: pairs_of_others_are_read,
    10: the_content_decides_and_not_the_suffix,
    11: a_picture_is_what_its_pixels_mean,
    12: bytes_after_a_pictures_end_are_no_damage,
    14: categories_of_pandas_are_their_values,
    15: an_entry_of_a_list_is_set_by_its_number,
    18: the_last_of_two_equal_keys_does_not_win,
    19: blanks_are_neither_prompt_nor_truth,
    20: a_file_is_written_over_only_when_told_to,
    21: names_in_archives_and_rows_meet_in_any_form,
    24: rows_of_others_are_read,
    25: a_path_may_climb_out_of_its_folder,
    27: what_skyrls_callers_set_is_taken,
}


@pytest.mark.parametrize("number", CASES, ids=[case.__name__ for case in CASES.values()])
def test_a_case_that_went_wrong_is_right(number: int) -> None:
    CASES[number]()


def named_tests() -> Iterator[tuple[str, str]]:
    for test in (test for tests in ELSEWHERE.values() for test in tests):
        file, _, name = test.partition("::")
        yield file, name


def test_every_case_has_a_test_that_is_there() -> None:
    numbers = {int(case.partition(" ")[0]) for case in ELSEWHERE} | CASES.keys()
    assert numbers == set(range(1, 29))
    for file, name in named_tests():
        tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
        assert name in {one.name for one in tree.body if isinstance(one, ast.FunctionDef)}, file
