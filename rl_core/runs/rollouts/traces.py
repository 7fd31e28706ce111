"""Stored rollouts as traces: a span for each reply, observation and reward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rl_core.runs.rollouts.columns import Limit
from rl_core.runs.rollouts.reading import Row, messages_of
from rl_core.tracking.traces import SpanKind, Trace, TraceSpan


def traces_of(rows: Sequence[Row], num: int, seed: int, started: float) -> list[Trace]:
    """Return the traces of some rows of a step, whole groups first.

    Args: rows: as they are stored. num: traces. started: Unix time at which the step began.
    """
    if not rows or not num:
        return []
    limit = Limit(seed, rows[0]["step"], "traces", num)
    chosen = limit([f"{row['track']}/{row['group_id']}" for row in rows])
    return [trace_of(rows[number], started) for number in chosen]


def trace_of(row: Row, started: float) -> Trace:
    """Return a row as a trace. Spans of turns end when they did; a row without turns has one reply,
    as long as the step's sampling."""
    messages = messages_of(row)
    num_turns = max(1, len(row["turns"]))
    asked, turns = messages[:-num_turns], messages[-num_turns:]
    lasted = dict(row["step_seconds"]).get("rollout", 0.0)
    ends = [lasted if one is None else one for one in row["turn_seconds"] or [lasted]]
    end = started + max(lasted, *ends)
    judged = {
        "reward": row["reward"],
        "advantage": row["advantage"],
        "parts": dict(row["reward_parts"]),
        "environment": dict(row["env_metrics"]),
    }
    whole = TraceSpan(
        f"step {row['step']}", SpanKind.CONVERSATION, started, end, asked, judged, row["error"]
    )
    begins = [0.0, *ends[:-1]]
    spans = []
    for number, (one, begin, stop) in enumerate(zip(turns, begins, ends, strict=True), 1):
        spans.append(_turn(number, one, started + begin, started + stop))
    reward = TraceSpan("reward", SpanKind.REWARD, end, end, row["env_read"], judged)
    tags = {"step": row["step"], "track": row["track"], "group_id": row["group_id"]}
    return Trace(
        f"step {row['step']} {row['track']} {row['sample_id']}",
        (whole, *spans, reward),
        asked[-1]["content"] if asked else "",
        turns[-1]["content"],
        {name: str(value) for name, value in tags.items()},
    )


def _turn(number: int, message: Mapping[str, object], start_s: float, end_s: float) -> TraceSpan:
    is_reply = message["role"] == "assistant"
    kind = SpanKind.REPLY if is_reply else SpanKind.TOOL
    said = {}
    for key in ("content", "reward"):
        if message.get(key) is not None:
            said[key] = message.get(key)
    return TraceSpan(f"{number} {message['role']}", kind, start_s, max(start_s, end_s), None, said)
