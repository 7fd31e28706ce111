"""Properties of PromptDataset."""

import random

import pytest

from rl_core.data import PromptDataset
from rl_core.data.prepare.prompts import PreparationSettings, load_prepared, prepare_cache
from rl_core.envs import accepted_ground_truths
from rl_core.errors import DataError
from skyrl_train.dataset.dataset import PromptDataset as SkyRLsDataset


def test_limit_is_inclusive_and_drops_are_counted(jsonl, good_row, tokenizer) -> None:
    path = jsonl("a.jsonl", [good_row("1 2 3"), good_row("1 2 3 4")])
    # user + words + assistant
    dataset = PromptDataset([path], tokenizer, max_prompt_length=5)
    assert (len(dataset), dataset.num_dropped) == (1, 1)
    assert dataset[0]["prompt"][0]["content"] == "1 2 3"


def test_item_keeps_every_other_column(jsonl, good_row, tokenizer) -> None:
    row = good_row(data_source="x", extra_info={"index": 0}, max_turns=5)
    item = PromptDataset([jsonl("a.jsonl", [row])], tokenizer, 10)[0]
    assert set(item) == {"prompt", "env_class", "env_extras", "uid"}
    assert item["env_extras"] == {k: v for k, v in row.items() if k not in ("prompt", "env_class")}


def test_uid_is_stable_under_order_and_filter_and_unique_among_twins(
    jsonl, good_row, tokenizer
) -> None:
    rows = [good_row(f"{i} {i}", answer) for i in range(5) for answer in ("5", 5)] + [
        good_row("1 1", "5")
    ]
    long = [good_row("1 2 3 4 5 6 7 8 9"), *rows]
    random.Random(0).shuffle(long)
    uids = {item["uid"] for item in PromptDataset([jsonl("a.jsonl", rows)], tokenizer, 10).items}
    shuffled = PromptDataset([jsonl("b.jsonl", long)], tokenizer, 10)
    assert shuffled.num_dropped == 1
    assert len(uids) == 11 and {item["uid"] for item in shuffled.items} == uids


def test_collate_returns_the_items_in_order(jsonl, good_row, tokenizer) -> None:
    dataset = PromptDataset([jsonl("a.jsonl", [good_row("1"), good_row("2")])], tokenizer, 10)
    assert dataset.collate_fn([dataset[1], dataset[0]]) == [dataset[1], dataset[0]]


def test_nothing_left_is_an_error(jsonl, good_row, tokenizer) -> None:
    with pytest.raises(
        DataError, match=r"no prompt is left of .*1 have more than max_prompt_length 2"
    ):
        PromptDataset([jsonl("a.jsonl", [good_row()])], tokenizer, 2)


def test_row_without_environment_is_named(jsonl, good_row, tokenizer) -> None:
    path = jsonl("a.jsonl", [good_row(), good_row(env_class=None)])
    with pytest.raises(DataError, match=r"a\.jsonl:2 field env_class: missing"):
        PromptDataset([path], tokenizer, 10)
    assert (
        PromptDataset([path], tokenizer, 10, default_env_class="gsm8k")[1]["env_class"] == "gsm8k"
    )


def test_template_kwargs_reach_the_template_and_its_refusal_names_the_row(
    jsonl, good_row, tokenizer
) -> None:
    prompt = [{"role": "system", "content": "1"}, {"role": "user", "content": "2"}]
    path = jsonl("a.jsonl", [good_row(), good_row(prompt=prompt)])
    assert len(PromptDataset([path], tokenizer, 10)) == 2
    with pytest.raises(
        DataError, match=r"a\.jsonl:2 field prompt: .*chat template refuses it: no system"
    ):
        PromptDataset([path], tokenizer, 10, template_kwargs={"no_system": True})


def test_preparation_keeps_what_the_dataset_keeps(jsonl, good_row, tokenizer, tmp_path) -> None:
    rows = [good_row(" ".join("1" * length)) for length in (3, 9, 4, 3, 8)]
    path, held_out = jsonl("a.jsonl", rows), jsonl("b.jsonl", [good_row("2 2")])
    settings = PreparationSettings(
        name="r",
        tokenizer_id="t",
        max_prompt_length=6,
        cache_root=tmp_path / "cache",
        memo_dir=tmp_path / "memo",
        allowed_env_classes=accepted_ground_truths(),
    )
    receipt = prepare_cache([path], [held_out], settings, tokenizer=tokenizer)
    dataset = SkyRLsDataset([path], tokenizer, 6)
    assert load_prepared(f"{receipt.path}/train.parquet") == dataset.items
    assert receipt.dropped["too_long"] == dataset.num_dropped == 2


def test_skyrls_import_path_gives_the_same_class() -> None:
    assert SkyRLsDataset is PromptDataset
