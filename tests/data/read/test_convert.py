"""Rows of one kind as rows of another."""

import json
from pathlib import Path
from typing import Any

import pytest

from rl_core.data import read_rows
from rl_core.data.check.files import check_files
from rl_core.data.check.parts import CheckSettings
from rl_core.data.read.convert import Conversion, convert_file
from rl_core.errors import DataError, EnvError, RecipeError
from schemas.rows.contract import SchemaName
from tests.data.seed_skyrl import ALLOWED, EXAMPLES, GSM8K

ONE_MESSAGE = {**GSM8K, "anything": {"else": [1, None]}}
RESPONSE: dict[str, Any] = {
    "responses_create_params": {
        "input": [{"role": "user", "content": "2 + 2?"}],
        "temperature": 0.5,
    },
    "agent_ref": {"type": "simple_agent", "name": "math"},
    "expected_answer": "4",
    "verifier_metadata": {"unit_tests": [1, 2**70]},
    "options": [{"A": "3"}, {"B": "4"}],
}


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def rows_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def converted(tmp_path: Path, rows: list[Any], *steps: SchemaName, **options: Any) -> list[Any]:
    path = write(tmp_path / "0.jsonl", rows)
    for number, step in enumerate(steps, start=1):
        target = tmp_path / f"{number}.jsonl"
        assert convert_file(path, target, Conversion(step, **options), force=True) == len(rows)
        settings = CheckSettings(ALLOWED, schema=step)
        report = check_files(
            [target], settings, rejects_dir=tmp_path / "rejects", memo_dir=tmp_path / "memo"
        )
        assert report.num_rejected == 0, report.examples
        path = target
    return rows_of(path)


@pytest.mark.parametrize("name", EXAMPLES)
def test_prompt_row_goes_to_a_response_row_and_back(name: str, tmp_path: Path) -> None:
    rows = [EXAMPLES[name]]
    assert converted(tmp_path, rows, SchemaName.RESPONSE, SchemaName.PROMPT) == rows


def test_prompt_row_goes_to_a_media_prompt_and_back(tmp_path: Path) -> None:
    (media,) = converted(tmp_path, [ONE_MESSAGE], SchemaName.MEDIA)
    assert media["prompt"] == ONE_MESSAGE["prompt"][0]["content"]
    assert converted(tmp_path, [ONE_MESSAGE], SchemaName.MEDIA, SchemaName.PROMPT) == [ONE_MESSAGE]
    assert converted(
        tmp_path, [ONE_MESSAGE], SchemaName.MEDIA, SchemaName.RESPONSE, SchemaName.PROMPT
    ) == [ONE_MESSAGE]


def test_response_row_becomes_a_prompt_row_that_keeps_everything(tmp_path: Path) -> None:
    (row,) = converted(tmp_path, [RESPONSE], SchemaName.PROMPT, env_class="gsm8k")
    assert row["prompt"] == RESPONSE["responses_create_params"]["input"]
    assert row["reward_spec"] == {"method": "rule", "ground_truth": "4"}
    assert {key: row[key] for key in RESPONSE if key != "responses_create_params"} == {
        key: value for key, value in RESPONSE.items() if key != "responses_create_params"
    }
    assert row["responses_create_params"] == {"temperature": 0.5}


def test_media_refs_travel_along(tmp_path: Path) -> None:
    ref = {"modality": "image", "role": "condition", "uri": "s3://b/a.png"}
    row = {
        "prompt": "snow",
        "prompt_id": "7",
        "media_refs": [ref],
        "metadata": {"env_class": "gsm8k"},
    }
    path = write(
        tmp_path / "a.jsonl",
        [{**row, "metadata": {**row["metadata"], "reward_spec": {"ground_truth": "1"}}}],
    )
    convert_file(path, tmp_path / "b.jsonl", Conversion(SchemaName.PROMPT))
    (prompt_row,) = rows_of(tmp_path / "b.jsonl")
    assert (prompt_row["media_refs"], prompt_row["prompt_id"]) == ([ref], "7")
    convert_file(tmp_path / "b.jsonl", tmp_path / "c.jsonl", Conversion(SchemaName.MEDIA))
    assert rows_of(tmp_path / "c.jsonl") == rows_of(path)


@pytest.mark.parametrize(
    ("row", "to", "said"),
    [
        (
            EXAMPLES["search"],
            SchemaName.MEDIA,
            r"a\.jsonl:2 field prompt: a media prompt is one text",
        ),
        (
            {"caption": "x", "style": "oil"},
            SchemaName.PROMPT,
            r"a\.jsonl:2 field env_class: missing; name the",
        ),
        (
            GSM8K,
            SchemaName.PREFERENCE,
            r"a\.jsonl:1: a prompt row cannot become a preference row, since it holds one answer",
        ),
    ],
)
def test_what_the_target_cannot_hold_is_refused_and_nothing_is_written(
    row: dict[str, Any], to: SchemaName, said: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "a.jsonl", [row if to is SchemaName.PROMPT else GSM8K, row])
    if to is SchemaName.PROMPT:
        said = said.replace(":2", ":1")
    with pytest.raises(DataError, match=said):
        convert_file(path, tmp_path / "b.jsonl", Conversion(to))
    assert not (tmp_path / "b.jsonl").exists()


@pytest.mark.parametrize("name", ["b.jsonl", "b.json", "b.parquet"])
def test_every_output_format_reads_back(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [GSM8K, {**GSM8K, "ability": "math"}])
    assert convert_file(path, tmp_path / name, Conversion(SchemaName.PROMPT)) == 2
    assert [row for _, row in read_rows(tmp_path / name)] == rows_of(path)


def test_parquet_that_would_retype_a_value_is_refused(tmp_path: Path) -> None:
    rows = [{**GSM8K, "reward_spec": {"ground_truth": truth}} for truth in ("5", 5)]
    with pytest.raises(DataError, match=r"b\.parquet: .*write \.jsonl instead"):
        convert_file(
            write(tmp_path / "a.jsonl", rows), tmp_path / "b.parquet", Conversion(SchemaName.PROMPT)
        )
    big = write(tmp_path / "big.jsonl", [{**GSM8K, "reward_spec": {"ground_truth": 2**70}}])
    with pytest.raises(DataError, match=r"b\.parquet"):
        convert_file(big, tmp_path / "b.parquet", Conversion(SchemaName.PROMPT))
    assert not (tmp_path / "b.parquet").exists()


def test_a_file_is_written_over_only_when_told_to(tmp_path: Path) -> None:
    source, target = (
        write(tmp_path / "a.jsonl", [GSM8K]),
        write(tmp_path / "b.jsonl", [{"mine": 1}]),
    )
    with pytest.raises(DataError, match=r"b\.jsonl: there is such a file already; .* --force"):
        convert_file(source, target, Conversion(SchemaName.PROMPT))
    assert rows_of(target) == [{"mine": 1}]
    convert_file(source, target, Conversion(SchemaName.PROMPT), force=True)
    assert rows_of(target) == [GSM8K]


def test_a_row_that_breaks_the_contract_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    source = write(
        tmp_path / "a.jsonl", [GSM8K, {**GSM8K, "prompt": [{"role": "tool", "content": "x"}]}]
    )
    for name in ("b.jsonl", "b.parquet"):
        with pytest.raises(DataError, match=r"a\.jsonl:2 field prompt\[0\]\.role: unknown role"):
            convert_file(source, tmp_path / name, Conversion(SchemaName.PROMPT))
        assert not (tmp_path / name).exists()


def test_an_environment_of_the_users_own_takes_every_ground_truth(tmp_path: Path) -> None:
    row = {
        **GSM8K,
        "env_class": "mine",
        "reward_spec": {"ground_truth": [{"input": "1", "output": "2"}]},
    }
    source, target = write(tmp_path / "a.jsonl", [row]), tmp_path / "b.jsonl"
    assert convert_file(source, target, Conversion(SchemaName.PROMPT)) == 1
    assert rows_of(target) == [row]
    with pytest.raises(EnvError, match="unknown environment 'gsm9k'"):
        Conversion(SchemaName.PROMPT, env_class="gsm9k")


def written(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("to", [SchemaName.PROMPT, SchemaName.RESPONSE])
@pytest.mark.parametrize("key", ["prompt", "messages"])
def test_the_environment_that_is_given_is_in_every_row(
    tmp_path: Path, to: SchemaName, key: str
) -> None:
    row = {key: [{"role": "user", "content": "1+1?"}], "reward_model": {"ground_truth": "2"}}
    source, target = tmp_path / "rows.jsonl", tmp_path / "new" / "folder" / "out.jsonl"
    source.write_text(json.dumps(row) + "\n" + json.dumps({**row, "env_class": "aime"}) + "\n")
    how = Conversion(to, env_class="gsm8k", prompt_key=key)
    assert convert_file(source, target, how) == 2
    assert [one["env_class"] for one in written(target)] == ["gsm8k", "aime"]
    with pytest.raises(DataError, match="there is such a file already"):
        convert_file(source, target, how)
    with pytest.raises(DataError, match="is a folder; give the name of the file"):
        convert_file(source, target.parent, how, force=True)
    source.write_text(json.dumps(row) + "\n" + json.dumps({**row, "reward_model": {}}) + "\n")
    before = target.read_bytes()
    if to is SchemaName.PROMPT:
        with pytest.raises(DataError, match=r"rows\.jsonl:2 field reward_spec"):
            convert_file(source, target, how, force=True)
        assert target.read_bytes() == before


def test_an_environment_is_suggested_by_its_source_and_never_taken(tmp_path: Path) -> None:
    row = {"prompt": "1+1?", "reward_model": {"ground_truth": "2"}, "data_source": "openai/gsm8k"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(DataError, match=r"--env-class \(data_source 'openai/gsm8k' may be 'gsm8k'"):
        convert_file(tmp_path / "rows.jsonl", tmp_path / "out.jsonl", Conversion(SchemaName.PROMPT))
    assert not (tmp_path / "out.jsonl").exists()


def test_pairs_have_no_environment_and_labelled_answers_become_pairs(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="pairs are not judged by an environment"):
        Conversion(SchemaName.PREFERENCE, env_class="gsm8k")
    rows = [{"prompt": "q", "completion": str(one), "label": one} for one in (True, False)]
    source, target = tmp_path / "kto.jsonl", tmp_path / "pairs.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert convert_file(source, target, Conversion(SchemaName.PREFERENCE)) == 1
    assert written(target) == [{"prompt": "q", "chosen": "True", "rejected": "False"}]
