"""A mapping makes the columns of any dataset those of a row, and says what it cannot read."""

from typing import Any

import pytest

from schemas.rows.column_map import ColumnMap, ColumnMapError

ROW: dict[str, Any] = {
    "question": "2 + 2?",
    "answer": "Two and two.\n#### 1,234",
    "reward_model": '{"ground_truth": "[1, 2]"}',
    "answers": {"text": ["a", "b"]},
    "a.b": "dotted name",
}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("question", "2 + 2?"),
        ("answer|after:####", "1,234"),
        ("answer|after:####|number", 1234),
        ("answer|before:####", "Two and two."),
        (r"answer|match:(\w+) and", "Two"),
        (r"answer|match:\w+", "Two"),
        (r"answer|match:Two\|Three", "Two"),
        ("question|suffix: Be brief.", "2 + 2? Be brief."),
        ("question|prefix:Say: ", "Say: 2 + 2?"),
        ("reward_model.ground_truth|json", [1, 2]),
        ("answers.text.1", "b"),
        ("a.b", "dotted name"),
        ("=openai/gsm8k", "openai/gsm8k"),
        ("=0.50|number", 0.5),
        ("=7|number|text", "7"),
    ],
)
def test_an_expression_reads_a_column(expression: str, value: Any):
    made = ColumnMap({"target": expression}).apply(ROW)
    assert made["target"] == value
    assert type(made["target"]) is type(value)
    assert {**made, **ROW} == made


def test_targets_have_their_places():
    mapping = ColumnMap.of_assignments(
        [
            "prompt=question",
            "ground_truth=answer|after:####",
            "extra_info.full=answer",
            "system==Be brief.",
        ]
    )
    made = mapping.apply({**ROW, "extra_info": {"index": 3}})
    assert made["prompt"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "2 + 2?"},
    ]
    assert made["reward_spec"] == {"ground_truth": "1,234"}
    assert made["extra_info"] == {"index": 3, "full": ROW["answer"]}


def test_a_row_is_not_changed():
    row = {"question": "x", "extra_info": {"index": 1}}
    ColumnMap({"extra_info.more": "question"}).apply(row)
    assert row == {"question": "x", "extra_info": {"index": 1}}


def test_a_column_without_a_value_leaves_its_target_as_it_was():
    row = {"prompt": "x", "answer": None}
    assert ColumnMap({"prompt": "answer|after:####", "system": "nothing"}).apply(row) == row


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("prompt", "is not of the form target=column|step"),
        ("prompt=", "map prompt: '' names no column"),
        ("prompt=a|upper", "map prompt: unknown step 'upper' .known: after:TEXT"),
        ("prompt=a|after", "map prompt: unknown step 'after'"),
        ("prompt=a|match:(", "no regular expression"),
    ],
)
def test_a_mapping_that_cannot_be_read_is_named(assignment: str, said: str):
    with pytest.raises(ColumnMapError, match=said):
        ColumnMap.of_assignments([assignment])


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("question|after:####", r"map t=question\|after:####: '2 \+ 2\?' has no '####'"),
        ("question|match:[a-z]", "does not match"),
        ("question|number", "could not convert string to float"),
        ("answers|text", "is not a text"),
        ("question.inner", "map t=question.inner"),
    ],
)
def test_a_row_that_it_does_not_fit_is_named_with_its_value(expression: str, said: str):
    with pytest.raises(ColumnMapError, match=said):
        ColumnMap({"t": expression}).apply(ROW)
