"""Secrets are hidden, and what only looks like one is not."""

import io
import logging
from pathlib import Path

import pytest

from rl_core.runs.recipes import dump_recipe, parse_recipe, shown_values
from rl_core.runtime.secrets import RedactedRecord, is_secret_name, redact, redact_values


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "cannot reach postgresql://ada:hunter22@db:5432/mlflow",
            "cannot reach postgresql://ada:***@db:5432/mlflow",
        ),
        ("s3://key:secret@bucket/rows and more", "s3://key:***@bucket/rows and more"),
        ("GET http://host/score?token=abc123&n=4", "GET http://host/score?token=***&n=4"),
        ("{'password': 'hunter22', 'user': 'ada'}", "{'password': '***', 'user': 'ada'}"),
        ('{"api_key": "abc", "n": 1}', '{"api_key": "***", "n": 1}'),
        ("HF_TOKEN=whatever make train", "HF_TOKEN=*** make train"),
        ("secret_access_key: wJalr/K7MDENG", "secret_access_key: ***"),
        ("Authorization: Bearer eyJhbGciOi.abc.def", "Authorization: Bearer ***"),
        ("found hf_abcdefghijklmnopqrst here", "found *** here"),
        ("AKIAIOSFODNN7EXAMPLE", "***"),
    ],
)
def test_a_secret_is_hidden_where_it_stands(text: str, shown: str):
    assert redact(text) == shown
    assert redact(shown) == shown, "hidden twice"


@pytest.mark.parametrize(
    "text",
    [
        "rollout.max_new_tokens=256 pad_token: <pad> eos_token='</s>' tokens/s: 343",
        "num_tokens=4 tokenizer: SmolLM2 token_ids: [1, 2]",
        "data.train: rows.jsonl:17 field reward_spec: missing ground_truth",
        "http://127.0.0.1:4200/api and models:/rl-train-text@champion",
        "ada@example.org wrote s3://bucket/key=1/part.parquet",
        "keys: prompt, env_class; key: value; monkey=1",
    ],
)
def test_what_is_no_secret_stays(text: str):
    assert redact(text) == text


def test_values_of_secret_environment_variables_are_hidden_anywhere(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "ada:open-sesame")
    monkeypatch.setenv("MY_SERVICE_KEY", "k-4711-4712")
    monkeypatch.setenv("SHORT_TOKEN", "abc")
    monkeypatch.setenv("DB_PWD", "open-barley")
    monkeypatch.setenv("RL_TRAIN_HOME_NAME", "not-a-secret")
    assert redact("sent ada:open-sesame and k-4711-4712 to abc") == "sent *** and *** to abc"
    assert redact("with open-barley") == "with ***"
    assert redact("home is not-a-secret") == "home is not-a-secret"


def test_the_folder_one_works_in_and_the_place_of_a_secret_are_no_secrets(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    for name in ("PWD", "OLDPWD", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.setenv(name, str(tmp_path))
    assert redact(f"{tmp_path}/file.py:3 failed") == f"{tmp_path}/file.py:3 failed"
    assert redact(f"PWD={tmp_path}") == f"PWD={tmp_path}"


def test_a_recipe_keeps_its_shape_and_loses_its_secrets():
    recipe = {
        "rewards": [
            {"name": "remote", "url": "http://u:pw@host/score", "token": "t", "weight": 1.0}
        ],
        "model": {"path": "org/model", "max_new_tokens": 8, "revision": None},
        "placement": {"password": ""},
    }
    assert redact_values(recipe) == {
        "rewards": [
            {"name": "remote", "url": "http://u:***@host/score", "token": "***", "weight": 1.0}
        ],
        "model": {"path": "org/model", "max_new_tokens": 8, "revision": None},
        "placement": {"password": ""},
    }


def test_a_name_says_whether_it_holds_a_secret():
    assert all(
        map(
            is_secret_name,
            [
                "token",
                "hf_token",
                "db.password",
                "AWS_SECRET_ACCESS_KEY",
                "api-key",
                "aws_session_token",
            ],
        )
    )
    assert not any(
        map(
            is_secret_name,
            ["max_new_tokens", "pad_token", "key", "tokenizer", "image_token", "author"],
        )
    )


def test_every_handler_sees_a_redacted_record_and_traceback():
    stream, before = io.StringIO(), logging.getLogRecordFactory()
    logger = logging.getLogger("tests.secrets")
    logger.propagate = False
    logger.addHandler(handler := logging.StreamHandler(stream))
    logging.setLogRecordFactory(RedactedRecord)
    try:
        logger.warning("connecting to %s as %d", "postgresql://ada:hunter22@db/x", 7)
        try:
            raise ValueError("token=abc123")
        except ValueError:
            logger.exception("it failed")
        logger.warning("kept %s", {"n": 1})
    finally:
        logging.setLogRecordFactory(before)
        logger.removeHandler(handler)
    said = stream.getvalue()
    assert "connecting to postgresql://ada:***@db/x as 7" in said
    assert "ValueError: token=***" in said
    assert "kept {'n': 1}" in said
    assert "hunter22" not in said and "abc123" not in said


def test_what_is_written_of_a_recipe_has_no_secrets_and_the_recipe_keeps_them():
    reward = {"name": "remote", "url": "http://ada:hunter22@scorer:8001", "weight": 1.0}
    values = {
        "name": "mine",
        "model": {"path": "org/model"},
        "data": {"train": ["a.jsonl"], "eval": ["b.jsonl"]},
        "rewards": [reward],
    }
    recipe = parse_recipe(values)
    assert "http://ada:***@scorer:8001" in dump_recipe(recipe)
    assert "hunter22" not in dump_recipe(recipe) + str(shown_values(recipe))
    assert recipe.rewards[0]["url"] == reward["url"]
