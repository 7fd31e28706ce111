"""Columns of a stored rollout: one row per sample, as it was trained on.

A list with an entry per action ends where the row ends, so padding is not stored. Actions are
tokens of the reply (replies and observations), or denoising steps; `prompt_ids` and `response_ids`
are of tokens alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from rl_core.data.prepare.items import Item
from rl_core.models.decoding.request import StopReason
from rl_core.rewards.service import VERDICTS
from rl_core.rollout.sample_ids import GROUP, SAMPLE
from rl_core.trainers.rewards import PART, SCORED

if TYPE_CHECKING:
    import pyarrow as pa

    from rl_core.data_proto import DataProto
    from rl_core.trainers.step_record import Portion

FETCHED = (
    *(GROUP, SAMPLE, "uid", "id", "parent", "env_class", "prompt", "turns", "response"),
    *("ground_truth", "stop_reason", "env_metrics", "env_read", "error", "failed_call"),
    VERDICTS,
    *("timed_out", "env_seconds", "images", "videos", "metadata"),
    *("input_ids", "attention_mask", "response_mask", "rollout_log_probs", "advantages"),
    *("turn_rewards", "rewards", "failed", "num_tokens"),
)
"""Columns of a batch that are fetched for a file, besides the parts of the reward."""
TIMING = ("env_seconds", "turn_seconds", "step_seconds")
"""Columns that differ when a step is repeated."""


def schema() -> pa.Schema:  # pyright: ignore[reportUnknownParameterType]
    """Return the columns of a file of rollouts."""
    import pyarrow as pa

    text, number, numbers = pa.string(), pa.float64(), pa.map_(pa.string(), pa.float64())
    turn = pa.struct(
        [("role", text), ("content", text), ("num_tokens", pa.int32()), ("reward", number)]
    )
    names = ("sample_id", "group_id", "uid", "id", "parent_id", "data_source", "env_class")
    return pa.schema(
        [
            *(("step", pa.int32()), ("track", text), ("trained", pa.bool_())),
            *((name, text) for name in names),
            *(("prompt", text), ("turns", pa.list_(turn)), ("response", text)),
            *(("ground_truth", text), ("metadata", text)),
            *(("pictures", pa.list_(text)), ("made", text)),
            *(("reward", number), ("reward_parts", numbers), ("scores", numbers)),
            *(("advantage", number), ("delta_log_prob", number)),
            *(("num_tokens", pa.int32()), ("num_turns", pa.int32())),
            *(("stop_reason", text), ("truncated", pa.bool_())),
            *(("failed", pa.bool_()), ("failed_call", text), ("timed_out", pa.bool_())),
            *(("error", text), ("env_metrics", numbers), ("env_read", text)),
            ("verdicts", pa.map_(text, text)),
            *((name, pa.list_(pa.int32())) for name in ("prompt_ids", "response_ids")),
            ("response_mask", pa.list_(pa.int8())),
            *((name, pa.list_(pa.float32())) for name in _FLOATS),
            *(("env_seconds", number), ("turn_seconds", pa.list_(number))),
            ("step_seconds", numbers),
        ]
    )


_FLOATS = ("rollout_log_probs", "train_log_probs", "advantages", "turn_rewards")


_UNKNOWN: Item = {"uid": ""}
"""Stands for the prompt of a row whose prompt is not known."""


def rows_of(
    portion: Portion, track: str, step: int, items: Mapping[str, Item], limit: Limit
) -> tuple[list[dict[str, object]], list[object]]:
    """Return the rows of a portion, and what was made for each: pixels, or None.

    Args: items: prompts by uid. limit: chooses the rows, by their groups.
    """
    keys = [*FETCHED, *(key for key in portion.names if key.startswith((PART, SCORED)))]
    batch = portion.fetch(keys)
    columns = batch.non_tensor_batch
    chosen = limit(columns[GROUP].tolist())
    tokens = _tokens(batch, portion.log_probs_like(batch.tensor("response_mask")))
    made = columns.get("images", columns.get("videos"))
    rows = []
    for row in chosen:
        uid = str(columns["uid"][row])
        # A row of a later track has the id of the row that it was made from: its prompt's, a slash.
        item = items.get(uid) or items.get(uid.partition("/")[0], _UNKNOWN)
        rows.append(
            {"step": step, "track": track, "trained": portion.trained}
            | _words(columns, row, item)
            | _judgement(batch, row)
            | {name: values[row] for name, values in tokens.items()}
        )
    for one in rows:
        one |= _summary(one)
    return rows, [None if made is None else made[row] for row in chosen]


class Limit:
    """Choice of rows: all, or some whose groups come first in an order of their own for each
    step."""

    def __init__(self, seed: int, step: int, track: str, most: int | None) -> None:
        self.key, self.left = f"{seed}:{step}:{track}:", most

    def __call__(self, groups_B: Sequence[str]) -> list[int]:
        """Return the numbers of the chosen rows, in order; those before count."""
        import hashlib

        if self.left is None:
            return list(range(len(groups_B)))
        digests = {}
        for group in groups_B:
            digests[group] = hashlib.sha256((self.key + str(group)).encode()).digest()
        order = sorted(range(len(groups_B)), key=lambda row: (digests[groups_B[row]], row))
        chosen = sorted(order[: self.left])
        self.left -= len(chosen)
        return chosen


def plain(text: object) -> str | None:
    """Return a text that UTF-8 can hold; None stays None."""
    if text is None:
        return None
    return str(text).encode("utf-8", "backslashreplace").decode()


def as_json(value: object) -> str:
    """Return a value as JSON; what JSON cannot hold becomes text."""
    return str(plain(json.dumps(value, ensure_ascii=False, default=str)))


def _words(columns: Mapping[str, Any], row: int, item: Item) -> dict[str, object]:
    """Return names and texts of a row."""

    def of(name: str) -> Any:
        if name in columns:
            return columns[name][row]
        return None

    extras = item.get("env_extras") or {}
    said = of("turns") or []
    turns = [_turn(one) for one in said]
    seconds = of("env_seconds")
    return {
        "sample_id": plain(of(SAMPLE)),
        "group_id": plain(of(GROUP)),
        "uid": plain(of("uid")),
        "id": plain(of("id")),
        "parent_id": plain(of("parent")),
        "data_source": plain(extras.get("data_source")),
        "env_class": plain(of("env_class")),
        "prompt": as_json(of("prompt")),
        "turns": turns,
        "response": plain(of("response")),
        "ground_truth": as_json(of("ground_truth")),
        "metadata": as_json(metadata) if (metadata := of("metadata")) else None,
        "pictures": [_picture(one) for one in _shown(item)],
        "made": None,
        "num_turns": sum(one["role"] == "assistant" for one in turns),
        "stop_reason": plain(of("stop_reason")),
        "truncated": _is_truncated(of("stop_reason")),
        "failed_call": plain(of("failed_call")),
        "timed_out": bool(of("timed_out")),
        "error": plain(of("error")),
        "env_metrics": _numbers(of("env_metrics") or {}),
        "env_read": plain(of("env_read") or None),
        "verdicts": sorted((plain(key), plain(one)) for key, one in (of(VERDICTS) or {}).items()),
        "env_seconds": None if seconds is None else float(seconds),
        "turn_seconds": [one.get("seconds") for one in said],
    }


def _turn(turn: Mapping[str, object]) -> dict[str, object]:
    content = turn["content"]
    if isinstance(content, str):
        text = plain(content)
    elif isinstance(content, Sequence):
        text = as_json([_part(part) for part in content])
    else:
        text = as_json(content)
    told = {name: turn[name] for name in ("num_tokens", "reward")}
    return {"role": plain(turn["role"]), "content": text, **told}


def _part(part: object) -> object:
    """Return a part of an observation; of a picture that stands in it, the kind alone."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping) or kind not in ("image", "image_url"):
        return part
    found = part.get(kind)
    path = found.get("url") if isinstance(found, Mapping) else found
    return {"type": kind, kind: _picture(path)}


def _shown(item: Item) -> Sequence[object]:
    """Return the pictures that a prompt shows, as its row names them."""
    extras = item.get("env_extras") or {}
    return extras.get("images") or item.get("media_refs") or []


def _picture(found: object) -> str:
    """Return the path or address of a picture; one that stands in the row itself is not repeated
    here."""
    path = found.get("path") or found.get("uri") if isinstance(found, Mapping) else found
    text = str(plain(path)) if path else ""
    if not text or text.startswith("data:"):
        return "in the row"
    return text


def _is_truncated(reason: object) -> bool:
    known = set(map(str, StopReason))
    if str(reason) in known:
        return StopReason(reason).is_truncated
    return reason == "length"


def _numbers(values: Mapping[str, Any]) -> list[tuple[str, float]]:
    return sorted((str(plain(name)), float(value)) for name, value in values.items())


def _judgement(batch: DataProto, row: int) -> dict[str, object]:
    assert batch.batch is not None
    names = sorted(map(str, batch.batch.keys()))

    def of(prefix: str) -> list[tuple[str, float]]:
        columns: list[tuple[str, float]] = []
        for name in names:
            if name.startswith(prefix):
                columns.append((name.removeprefix(prefix), float(batch.tensor(name)[row])))
        return columns

    return {
        "reward": float(batch.tensor("rewards")[row]),
        "reward_parts": of(PART),
        "scores": of(SCORED),
        "failed": bool(batch.tensor("failed")[row]),
        "num_tokens": int(batch.tensor("num_tokens")[row]),
    }


def _tokens(batch: DataProto, log_probs_BT: Tensor) -> dict[str, Sequence[object]]:
    """Return the lists with an entry per action, cut to the length of each row."""
    assert batch.batch is not None
    mask_BT = batch.tensor("response_mask")
    num_rows, width = mask_BT.shape
    ids, used = batch.batch.get("input_ids", None), batch.batch.get("attention_mask", None)
    none: list[object] = [None] * num_rows
    found: dict[str, Sequence[object]] = {"prompt_ids": none, "response_ids": none}
    lengths_B = [width] * num_rows
    if ids is not None and used is not None:
        lengths_B = used[:, -width:].sum(1).tolist()
        prompt_BP, used_BP = ids[:, :-width], used[:, :-width].bool()
        prompts = zip(prompt_BP, used_BP, strict=True)
        found["prompt_ids"] = [row[kept].tolist() for row, kept in prompts]
        found["response_ids"] = _cut(ids[:, -width:], lengths_B)
    found["response_mask"] = _cut(mask_BT, lengths_B)
    for name in ("rollout_log_probs", "advantages", "turn_rewards"):
        values = batch.batch.get(name, None)
        found[name] = none if values is None else _cut(values.float(), lengths_B)
    known_B = (~log_probs_BT.isnan()).any(1).tolist()
    # Passes of rows are cut to their own width: what lies beyond has no value.
    rows = _cut(log_probs_BT.nan_to_num(0.0), lengths_B)
    found["train_log_probs"] = [
        one if known else None for one, known in zip(rows, known_B, strict=True)
    ]
    return found


def _cut(values_BT: Tensor, lengths_B: Sequence[int]) -> list[list[float]]:
    return [one[:length] for one, length in zip(values_BT.tolist(), lengths_B, strict=True)]


def _summary(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mean advantage of a row's actions, and the mean distance of both
    log-probabilities."""
    acts = [place for place, one in enumerate(row["response_mask"]) if one]
    advantages, ours, theirs = row["advantages"], row["train_log_probs"], row["rollout_log_probs"]
    apart = None
    if ours is not None and theirs is not None and acts:
        apart = math.fsum(abs(ours[place] - theirs[place]) for place in acts) / len(acts)
    mean = None
    if advantages is not None:
        mean = math.fsum(advantages[place] for place in acts) / len(acts) if acts else 0.0
    return {"advantage": mean, "delta_log_prob": apart}
