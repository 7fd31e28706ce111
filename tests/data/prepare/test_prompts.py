"""Properties of the prepared cache."""

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

import pytest

from rl_core.data import PromptDataset
from rl_core.data.prepare.prompts import (
    PreparationSettings,
    load_prepared,
    plan_cache,
    prepare_cache,
)
from rl_core.data.store.publish import RECEIPTS, SENTINEL, open_published
from rl_core.envs.trials.settings import TrialSettings
from rl_core.errors import DataError
from schemas.receipts import CacheReceipt
from schemas.rows.contract import SchemaName
from schemas.sections.sft import TaughtTurns

Prepare = Callable[..., CacheReceipt]


@pytest.fixture
def settings(tmp_path: Path, allowed) -> PreparationSettings:
    return PreparationSettings(
        name="text",
        tokenizer_id="tiny",
        max_prompt_length=10,
        cache_root=tmp_path / "cache",
        memo_dir=tmp_path / "memo",
        allowed_env_classes=allowed,
    )


@pytest.fixture
def files(jsonl, good_row) -> tuple[list[Path], list[Path]]:
    train = jsonl(
        "train.jsonl", [good_row("1", "5"), good_row("1", 5), good_row("1 2 3 4 5 6 7 8 9", "5")]
    )
    return [train], [jsonl("eval.jsonl", [good_row("2", "5", extra_info={"a": [1, None]})])]


def no_tokenizer() -> Any:
    raise AssertionError("a hit needs no tokenizer")


def folders(settings: PreparationSettings) -> list[str]:
    return [
        path.name
        for path in settings.cache_root.iterdir()
        if path.is_dir() and path.name != RECEIPTS
    ]


def test_rows_come_back_as_they_were_written(files, settings, tokenizer, good_row) -> None:
    receipt = prepare_cache(*files, settings, tokenizer=lambda: tokenizer)
    assert (receipt.num_train_rows, receipt.num_eval_rows, receipt.dropped) == (
        2,
        1,
        {"too_long": 1, "invalid": 0},
    )
    train = load_prepared(Path(receipt.path) / "train.parquet")
    truths = [item["env_extras"]["reward_spec"]["ground_truth"] for item in train]
    assert truths == ["5", 5] and [type(truth) for truth in truths] == [str, int]
    assert load_prepared(Path(receipt.path) / "eval.parquet")[0]["env_extras"]["extra_info"] == {
        "a": [1, None]
    }
    assert Path(receipt.path).name == f"text-{receipt.run_hash[:12]}"


def test_prepared_rows_equal_the_dataset_of_the_raw_file(files, settings, tokenizer) -> None:
    receipt = prepare_cache(*files, settings, tokenizer=tokenizer)
    raw = PromptDataset(files[0], tokenizer, 10)
    prepared = PromptDataset([Path(receipt.path) / "train.parquet"], tokenizer, 10)
    assert prepared.items == raw.items


def test_second_preparation_is_a_hit_without_a_tokenizer(files, settings, tokenizer) -> None:
    first = prepare_cache(*files, settings, tokenizer=tokenizer)
    second = prepare_cache(*files, settings, tokenizer=no_tokenizer)
    assert (first.hit, second.hit) == (False, True)
    assert (first.explanation, first.run_hash) == ("first preparation of text", second.run_hash)
    assert second.explanation.startswith("cached: nothing changed since 20")


def test_miss_names_what_changed(files, settings, tokenizer, jsonl, good_row) -> None:
    prepare_cache(*files, settings, tokenizer=tokenizer)
    smaller = replace(settings, max_prompt_length=9)
    assert (
        prepare_cache(*files, smaller, tokenizer=tokenizer).explanation
        == "max_prompt_length changed from 10 to 9"
    )
    jsonl("train.jsonl", [good_row("7")])
    assert prepare_cache(*files, smaller, tokenizer=tokenizer).explanation == "train.jsonl changed"
    back = prepare_cache(
        *files, replace(settings, cache_root=settings.cache_root / "new"), tokenizer=tokenizer
    )
    assert back.explanation == "first preparation of text"


def test_place_of_inputs_and_output_is_no_part_of_the_hash(files, settings, tmp_path) -> None:
    (tmp_path / "moved").mkdir()
    moved = [
        [path.rename(tmp_path / "moved" / path.name).parent / path.name for path in paths]
        for paths in files
    ]
    there = plan_cache(*moved, replace(settings, cache_root=tmp_path / "elsewhere"))
    for paths in moved:
        for path in paths:
            path.rename(tmp_path / path.name)
    assert plan_cache(*files, settings).run_hash == there.run_hash


OTHER_ROWS: dict[str, Any] = {
    "tokenizer_id": "another",
    "max_prompt_length": 11,
    "allowed_env_classes": {"gsm8k": frozenset({"string"})},
    "default_env_class": "gsm8k",
    "policy": "drop",
    "max_bad_fraction": 0.5,
    "prompt_key": "question",
    "template_kwargs": {"enable_thinking": False},
}
"""Another value of every setting that decides which rows come out."""


OF_CONVERSATIONS: dict[str, Any] = {
    "schema": SchemaName.CONVERSATION,
    "turns": TaughtTurns.LAST,
    "needs_answers": False,
}
"""The same, where rows are conversations with the answers to learn."""


def test_the_settings_of_conversations_give_other_run_hashes(files, settings) -> None:
    talks = replace(settings, schema=SchemaName.CONVERSATION)
    others = [replace(talks, **{key: value}) for key, value in OF_CONVERSATIONS.items()]
    hashes = {plan_cache(*files, one).run_hash for one in (settings, *others)}
    assert len(hashes) == 1 + len(OF_CONVERSATIONS)


def test_every_setting_that_decides_the_rows_gives_another_run_hash(files, settings) -> None:
    # Trials decide only where refused rows are dropped (below), and so does contamination
    # (tests/data/overlap/test_policies.py).
    others = {"name", "cache_root", "memo_dir", "trials", "contamination", *OF_CONVERSATIONS}
    assert OTHER_ROWS.keys() | others == {one.name for one in fields(PreparationSettings)}
    hashes = {
        plan_cache(*files, replace(settings, **{key: value})).run_hash
        for key, value in OTHER_ROWS.items()
    }
    assert len(hashes - {plan_cache(*files, settings).run_hash}) == len(OTHER_ROWS)


def test_trials_are_part_of_the_hash_only_where_refused_rows_are_dropped(files, settings) -> None:
    def hashes(policy: Literal["fail", "drop"]) -> set[str]:
        under = replace(settings, policy=policy)
        tried = [None, TrialSettings(), TrialSettings({"gsm8k": {"max_turns": 2}})]
        return {plan_cache(*files, replace(under, trials=one)).run_hash for one in tried}

    assert (len(hashes("fail")), len(hashes("drop"))) == (1, 3)


def test_a_prompt_of_the_greatest_length_is_kept(settings, tokenizer, jsonl, good_row) -> None:
    # The template adds two words, the role and what the assistant begins with.
    longest = settings.max_prompt_length - 2
    train = [
        jsonl(
            "train.jsonl",
            [good_row(" ".join("1" * num_words)) for num_words in (longest, longest + 1)],
        )
    ]
    receipt = prepare_cache(train, [], settings, tokenizer=tokenizer)
    (kept,) = load_prepared(Path(receipt.path) / "train.parquet")
    assert kept["prompt"][0]["content"] == " ".join("1" * longest)
    assert receipt.dropped == {"too_long": 1, "invalid": 0}


def test_plan_agrees_with_preparation_and_writes_no_rows(files, settings, tokenizer) -> None:
    before = plan_cache(*files, settings)
    assert not settings.cache_root.exists()
    receipt = prepare_cache(*files, settings, tokenizer=tokenizer)
    after = plan_cache(*files, settings)
    assert (before.hit, before.run_hash, before.explanation) == (
        False,
        receipt.run_hash,
        receipt.explanation,
    )
    assert (after.hit, after.folder) == (True, Path(receipt.path))


def test_damaged_cache_is_rebuilt_and_says_so(files, settings, tokenizer) -> None:
    first = prepare_cache(*files, settings, tokenizer=tokenizer)
    (Path(first.path) / "train.parquet").write_bytes(b"x")
    second = prepare_cache(*files, settings, tokenizer=tokenizer)
    assert not second.hit and "missing or damaged" in second.explanation
    open_published(second.path, SENTINEL)


def test_a_file_cut_in_half_is_prepared_anew_and_mapped_anew(files, settings, tokenizer) -> None:
    first = prepare_cache(*files, settings, tokenizer=tokenizer)
    path = Path(first.path) / "train.parquet"
    before = list(load_prepared(path))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(DataError, match=r"train\.parquet: not a readable Parquet file"):
        load_prepared(path)
    second = prepare_cache(*files, settings, tokenizer=tokenizer)
    assert not second.hit and second.path == first.path
    assert load_prepared(path) == before
    # What a reader adds to the folder is no damage to what was published there.
    assert prepare_cache(*files, settings, tokenizer=no_tokenizer).hit


def test_no_row_left_publishes_nothing(files, settings, tokenizer) -> None:
    with pytest.raises(
        DataError, match="no train row is left: 4 have more than max_prompt_length 1 tokens"
    ):
        prepare_cache(*files, replace(settings, max_prompt_length=1), tokenizer=tokenizer)
    assert folders(settings) == []


def test_bad_rows_fail_or_are_dropped_by_policy(
    files, settings, tokenizer, jsonl, good_row
) -> None:
    train = [jsonl("bad.jsonl", [good_row("1"), good_row("2", env_class="nope")])]
    with pytest.raises(DataError, match=r"bad\.jsonl:2 field env_class: unknown environment"):
        prepare_cache(train, [], settings, tokenizer=tokenizer)
    with pytest.raises(
        DataError, match=r"1 of 2 rows are refused, more than max_bad_fraction 0\.1"
    ):
        prepare_cache(
            train, [], replace(settings, policy="drop", max_bad_fraction=0.1), tokenizer=tokenizer
        )
    assert folders(settings) == []
    receipt = prepare_cache(
        train, [], replace(settings, policy="drop", max_bad_fraction=0.5), tokenizer=tokenizer
    )
    assert (receipt.num_train_rows, receipt.num_eval_rows, receipt.dropped["invalid"]) == (1, 0, 1)


def test_unprepared_file_is_refused_by_name(files, tmp_path) -> None:
    with pytest.raises(DataError, match=r"train\.jsonl: not a prepared file"):
        load_prepared(files[0][0])
