"""Traces: what happened in one sampled conversation, as spans that the MLflow UI shows in a tree.

A trace that is sent again, after a crash or by a repeated step, replaces the earlier one, since its
id and those of its spans follow from their names.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

PREVIEW = 1000
"""Characters of request and reply in the list of traces."""
SCHEMA = "3"


class SpanKind(StrEnum):
    """Kind of a span, in MLflow's terms."""

    CONVERSATION = "CHAIN"
    """The whole conversation."""
    REPLY = "CHAT_MODEL"
    """A reply of the model."""
    TOOL = "TOOL"
    """An answer of the environment or of a tool."""
    REWARD = "EVALUATOR"
    """The reward and its parts."""


@dataclass(frozen=True)
class TraceSpan:
    """One part of a trace."""

    name: str
    kind: SpanKind
    start_s: float
    """Unix time."""
    end_s: float
    inputs: object = None
    outputs: object = None
    error: str | None = None


@dataclass(frozen=True)
class Trace:
    """A conversation: its first span holds the others."""

    name: str
    """Name that no other trace of the run has."""
    spans: Sequence[TraceSpan]
    request: str = ""
    response: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)


def trace_entry(trace: Trace, experiment_id: str) -> dict[str, object]:
    """Return a trace as an entry of an outbox."""
    return {"kind": "trace", "trace": asdict(trace), "experiment_id": experiment_id}


def send_trace(uri: str, run_id: str, experiment_id: str, trace: Mapping[str, Any]) -> None:
    """Store a trace, linked to its run. Raises: the exceptions of MLflow."""
    from mlflow.entities import TraceInfo, TraceState
    from mlflow.entities.trace_location import TraceLocation
    from mlflow.tracing.client import TracingClient

    key = f"{run_id}/{trace['name']}"
    first, *_ = spans = trace["spans"]
    client = TracingClient(uri)
    client.start_trace(
        TraceInfo(
            trace_id=_trace_id(key),
            trace_location=TraceLocation.from_experiment_id(experiment_id),
            request_time=int(first["start_s"] * 1e3),
            execution_duration=int((first["end_s"] - first["start_s"]) * 1e3),
            state=TraceState.ERROR if first["error"] else TraceState.OK,
            request_preview=trace["request"][:PREVIEW],
            response_preview=trace["response"][:PREVIEW],
            trace_metadata={"mlflow.sourceRun": run_id, "mlflow.trace_schema.version": SCHEMA},
            tags={"mlflow.traceName": trace["name"], **trace["tags"]},
        )
    )
    client.log_spans(experiment_id, [_span(key, place, one) for place, one in enumerate(spans)])


def _span(key: str, place: int, span: Mapping[str, Any]) -> Any:
    from mlflow.entities import Span

    attributes = {
        "mlflow.traceRequestId": _trace_id(key),
        "mlflow.spanType": str(span["kind"]),
        "mlflow.spanInputs": span["inputs"],
        "mlflow.spanOutputs": span["outputs"],
    }
    failed = span["error"] is not None
    return Span.from_dict(
        {
            "trace_id": _encoded(_digest(key, 16)),
            "span_id": _encoded(_digest(f"{key}/{place}", 8)),
            "parent_span_id": _encoded(_digest(f"{key}/0", 8)) if place else None,
            "name": span["name"],
            "start_time_unix_nano": int(span["start_s"] * 1e9),
            "end_time_unix_nano": int(span["end_s"] * 1e9),
            "events": [],
            "status": {
                "code": "STATUS_CODE_ERROR" if failed else "STATUS_CODE_OK",
                "message": span["error"] or "",
            },
            "attributes": {name: json.dumps(value) for name, value in attributes.items()},
            "links": [],
        }
    )


def _trace_id(key: str) -> str:
    return f"tr-{_digest(key, 16).hex()}"


def _digest(text: str, num_bytes: int) -> bytes:
    return hashlib.sha256(text.encode()).digest()[:num_bytes]


def _encoded(value: bytes) -> str:
    return base64.b64encode(value).decode()
