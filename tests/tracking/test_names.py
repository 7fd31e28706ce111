"""Whatever a file, column, metric or model is called: MLflow keeps it, and it comes back."""

import string
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlflow.utils.validation import _validate_param_name
from pydantic import ValidationError

from rl_core.runtime.home import Home
from rl_core.tracking.keys import MAX_KEY_LENGTH, filter_value, original_key, stored_key
from rl_core.tracking.model_versions import find_version, newest, promote, register_version
from rl_core.tracking.run import TrackingRun
from schemas.sections.registration import RegistrationConfig

UGLY = [
    "".join(string.printable.split("\x0b")),
    "work (1)/train (1).parquet",
    "split=train/part-0.parquet",
    "a+b.jsonl",
    "x@v2.jsonl",
    "../up//twice/",
    "Übung ½ 训练 🚋.jsonl",
    b"latin-\xe9.jsonl".decode("utf-8", "surrogateescape"),
    "nul\0here",
    "_x28_",
    "",
]
NAMES = st.text(st.one_of(st.sampled_from("/._x4a0 @"), st.characters()), max_size=30)


@settings(max_examples=500, deadline=None)
@given(NAMES)
def test_a_key_is_one_that_mlflow_takes_and_reads_back_as_the_name(name: str):
    key = stored_key(name)
    _validate_param_name(key)
    assert original_key(key) == name


@pytest.mark.parametrize(
    "name", ["reward/mean", "env/gsm8k/acc", "data.train", "a: b-c_d", "max_x"]
)
def test_an_ordinary_name_is_its_own_key(name: str):
    assert stored_key(name) == name


def test_two_long_names_stay_two():
    first, second = (stored_key("x" * 300 + end) for end in "ab")
    assert first != second
    assert len(first) == len(second) == MAX_KEY_LENGTH


def test_ugly_names_are_kept_as_parameters_metrics_tags_and_datasets(open_run):
    run = open_run()
    values = {name: number for number, name in enumerate(UGLY)}
    run.log_params(values)
    run.log_params({name: number + 1 for name, number in values.items()})  # as on resume
    run.log_metrics(values, 1)
    run.set_tags(values)
    for name in UGLY:
        run.log_dataset(name or "-", name, "a" * 64, context="training", num_rows=1)
    run.flush()
    stored = run.client.get_run(run.run_id)
    assert {original_key(key): int(value) for key, value in stored.data.params.items()} == values
    assert {original_key(key): int(value) for key, value in stored.data.metrics.items()} == values
    tags = {original_key(key): value for key, value in stored.data.tags.items()}
    assert {tags[name] for name in UGLY} == {str(number) for number in values.values()}
    assert {tags[f"resumed.{name}"] for name in UGLY} == {str(one + 1) for one in values.values()}
    assert len(stored.inputs.dataset_inputs) == len(UGLY)


@pytest.mark.parametrize("name", ["Qwen2.5-math", "it's 100%", "a`b"])
def test_a_model_is_registered_and_found_by_its_name(name: str, open_run, tracking, tmp_path: Path):
    assert RegistrationConfig(model_name=name).model_name == name
    run = open_run()
    held_out = run.log_dataset("held-out", "x", "a" * 64, context="evaluation", num_rows=1)
    tags = dict.fromkeys(("run_key", "cache_hash", "eval_digest", "accuracy", "checkpoint"), "1")
    metrics = {"accuracy": 1.0, "acc@1": 0.5}
    number = register_version(run, name, tmp_path, metrics, held_out, tags)
    promote(tracking.uri, name, number, "it is better")
    found = find_version(tracking.uri, f"models:/{name}@champion")
    assert (found.name, found.version, found.metrics) == (name, number, metrics)
    assert newest(tracking.uri, name) == find_version(tracking.uri, name, number)


@pytest.mark.parametrize(
    "name", ["", " x", "..", "org/model", "a:b", "a@b", 'a"b', "a\nb", "x" * 257]
)
def test_a_models_name_that_the_registry_refuses_is_refused_before_the_training(name: str):
    with pytest.raises(ValidationError, match="a model's name has"):
        RegistrationConfig(model_name=name)


def test_a_text_that_no_filter_can_hold_finds_nothing():
    assert (filter_value("a'b"), filter_value('a"b')) == ('"a\'b"', "'a\"b'")
    assert filter_value("a'b\"c") is None


def test_a_home_may_have_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    home = Home(tmp_path / "what? 50%41 #1 & more")
    run = TrackingRun.open(
        home.mlflow_uri, "e", "r", artifact_location=home.artifact_location, outbox=None
    )
    run.log_text("kept", "note.txt")
    run.finish()
    assert (home.root / "mlflow.db").is_file()
    assert [file.read_text() for file in home.root.rglob("note.txt")] == ["kept"]
    assert [path.name for path in tmp_path.iterdir()] == [home.root.name]
    database = home.environment()["PREFECT_SERVER_DATABASE_CONNECTION_URL"]
    assert database.endswith("/what%3F%2050%2541%20%231%20%26%20more/prefect/prefect.db?uri=true")
