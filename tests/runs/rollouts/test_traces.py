"""Stored rollouts as traces: what was said, in order, and what it earned."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_core.runs.rollouts.reading import Row, files_of, read_rows
from rl_core.runs.rollouts.traces import trace_of, traces_of
from rl_core.tracking.traces import SpanKind
from tests.runs.rollouts.stored import batch, recipe, store


def rows_of(folder: Path, **columns: object) -> list[Row]:
    rows = batch(["a", "a", "b", "b"], list("wxyz"), [0.0, 1.0] * 2, **columns)
    (path,) = files_of(store(folder, {3: rows})).values()
    return list(read_rows(path))


def test_a_conversation_has_a_span_for_each_turn_and_its_reward(tmp_path: Path):
    said = [
        ("assistant", "2 + 2 =", 1.0, 0.5),
        ("tool", "4", 1.5, None),
        ("assistant", "4.", 2.0, 1.0),
    ]
    turns = [
        {"role": role, "content": text, "num_tokens": 1, "seconds": at, "reward": reward}
        for role, text, at, reward in said
    ]
    row = rows_of(tmp_path, turns=[turns] * 4)[1]
    trace = trace_of(row, started=100.0)
    assert (trace.request, trace.response) == ("asked about a", "4.")
    whole, *spans, reward = trace.spans
    assert (whole.start_s, whole.end_s) == (100.0, 102.0)
    assert whole.outputs == reward.outputs
    assert reward.outputs["reward"] == 1.0 and reward.outputs["environment"] == {"right": 1.0}
    assert [(one.name, one.kind, one.start_s, one.end_s) for one in spans] == [
        ("1 assistant", SpanKind.REPLY, 100.0, 101.0),
        ("2 tool", SpanKind.TOOL, 101.0, 101.5),
        ("3 assistant", SpanKind.REPLY, 101.5, 102.0),
    ]
    assert spans[0].outputs == {"content": "2 + 2 =", "reward": 0.5}


def test_a_row_without_turns_is_one_reply_as_long_as_the_sampling(tmp_path: Path):
    trace = trace_of(rows_of(tmp_path, turns=[[]] * 4)[0], started=10.0)
    _, reply, _ = trace.spans
    assert (reply.start_s, reply.end_s, reply.outputs) == (10.0, 11.5, {"content": "w"})


def test_as_many_as_asked_for_in_whole_groups_always_the_same(tmp_path: Path):
    rows = rows_of(tmp_path)
    first = [trace.name for trace in traces_of(rows, 2, 0, 1.0)]
    assert first == [trace.name for trace in traces_of(rows, 2, 0, 9.0)]
    assert len({name.split(":")[1] for name in first}) == 1
    assert len(traces_of(rows, 99, 0, 1.0)) == 4
    assert traces_of(rows, 0, 0, 1.0) == []


def test_traces_need_stored_rows():
    with pytest.raises(ValueError, match="write all or sample:N there"):
        recipe(tracking={"rollouts": "none", "traces": 3})
