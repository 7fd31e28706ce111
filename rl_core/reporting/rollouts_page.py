"""The page of a run's rollouts: conversations with their tokens, to search and to leaf through.

It holds at most `MOST_ROWS` rows of at most `MOST_STEPS` steps, spread over the run, and says
which.
"""

from __future__ import annotations

import base64
import io
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from rl_core.data.store.atomic import atomic_write_text
from rl_core.reporting.pages import render
from rl_core.reporting.run_record import RunRecord
from rl_core.reporting.token_texts import TokenTexts
from rl_core.runs.rollouts.reading import Row, files_of, messages_of, read_rows
from rl_core.runtime.home import Home

MOST_ROWS, MOST_STEPS = 240, 24
MOST_TOKENS = 1000
"""Tokens of a row that have colours; a longer row is cut there."""
MOST_CHARACTERS = 6000
"""Characters of a message; a longer one is cut there."""
PICTURE_SIDE = 160
LIGHT = ("uid", "step", "reward", "failed")


def write_rollouts_page(record: RunRecord, home: Home, report: Path) -> Path | None:
    """Write the page beside a report. Returns: its path; None if the run stored no rollouts."""
    if not files_of(record.folder.rollouts):
        return None
    path = report.with_name(page_name(report))
    atomic_write_text(path, rollouts_page(record, home, report.name))
    return path


def page_name(report: Path) -> str:
    """Return the file name of the page that goes with a report."""
    if report.stem == "report":
        return "rollouts.html"
    return f"{report.stem}-rollouts.html"


def rollouts_page(record: RunRecord, home: Home, report: str) -> str:
    """Return the page. Args: report: name of the report's file, which it links to."""
    files = files_of(record.folder.rollouts)
    steps = spread(list(files), MOST_STEPS)
    texts = TokenTexts.of(record, home.models)
    chosen = []
    for step in steps:
        chosen.extend(_first_groups(files[step], MOST_ROWS // len(steps)))
    history, num_rows = _rewards_over_the_run(files, {row["uid"] for row in chosen})
    rows = [_shown(row, texts, record.folder.rollouts) for row in chosen]
    return render(
        "rollouts.html",
        record=record,
        report=report,
        num_rows=num_rows,
        num_shown=len(rows),
        num_steps=len(files),
        steps=steps,
        limits={"tokens": MOST_TOKENS, "characters": MOST_CHARACTERS},
        data=as_script({"rows": rows, "history": history}),
    )


def spread(steps: Sequence[int], most: int) -> list[int]:
    """Return at most `most` steps, evenly spread; the first and the last are among them."""
    if len(steps) <= most:
        return list(steps)
    places = [round(number * (len(steps) - 1) / (most - 1)) for number in range(most)]
    return [steps[place] for place in places]


def as_script(value: object) -> str:
    """Return JSON for a `<script>` element: no text in it can end the element or open another."""
    from markupsafe import Markup

    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for one in "<>&\u2028\u2029":
        text = text.replace(one, f"\\u{ord(one):04x}")
    return Markup(text)


def _first_groups(path: Path, most: int) -> list[Row]:
    """Return the first rows of a step, whole groups unless the first is larger than `most`."""
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in read_rows(path):
        groups[row["track"], row["group_id"]].append(row)
        if sum(map(len, groups.values())) > 2 * most:
            break
    chosen: list[Row] = []
    for rows in groups.values():
        if chosen and len(chosen) + len(rows) > most:
            break
        chosen += rows
    return chosen[:most]


def _rewards_over_the_run(
    files: dict[int, Path], uids: set[str]
) -> tuple[dict[str, list[list[float]]], int]:
    """Return step and reward of every sample of these prompts, and the number of rows of the
    run."""
    history: dict[str, list[list[float]]] = defaultdict(list)
    num_rows = 0
    for path in files.values():
        for row in read_rows(path, LIGHT):
            num_rows += 1
            if row["uid"] in uids and not row["failed"]:
                history[row["uid"]].append([row["step"], _rounded(row["reward"]) or 0.0])
    return history, num_rows


def _shown(row: Row, texts: TokenTexts, folder: Path) -> dict[str, object]:
    messages = []
    for one in messages_of(row):
        messages.append([one["role"], _cut(one["content"]), _rounded(one.get("reward"))])
    return {
        "step": row["step"],
        "track": row["track"],
        "id": row["sample_id"],
        "uid": row["uid"],
        "group": row["group_id"],
        "reward": _rounded(row["reward"]),
        "advantage": _rounded(row["advantage"]),
        "delta": _rounded(row["delta_log_prob"]),
        "length": row["num_tokens"],
        "end": row["stop_reason"],
        "messages": messages,
        "facts": [[name, _cut(str(value))] for name, value in _facts(row) if value is not None],
        "tokens": _tokens(row, texts),
        "picture": _thumbnail(folder / row["made"]) if row["made"] else None,
    }


def _facts(row: Row) -> Iterator[tuple[str, object]]:
    truth = row["ground_truth"]
    yield from (
        ("ground truth", None if truth == "null" else truth),
        ("environment", row["env_class"]),
        ("data source", row["data_source"]),
        ("read", row["env_read"] or "nothing"),
        *((f"part {name}", _rounded(value)) for name, value in row["reward_parts"].items()),
        *((f"score {name}", _rounded(value)) for name, value in row["scores"].items()),
        *((name, _rounded(value)) for name, value in row["env_metrics"].items()),
        *(("picture", path) for path in row["pictures"]),
        *([("error", row["error"])] if row["error"] else []),
        *([] if row["trained"] else [("not trained", "left out of the step")]),
    )


def _tokens(row: Row, texts: TokenTexts) -> list[list[object]] | None:
    """Return text, mask, advantage and |Δlogp| of each action: tokens, or steps by number."""
    mask = row["response_mask"][:MOST_TOKENS]
    ids = row["response_ids"]
    words = [f"{place + 1} " for place in range(len(mask))] if ids is None else texts(ids)
    none = [None] * len(mask)
    ours, theirs = row["train_log_probs"], row["rollout_log_probs"]
    apart = none
    if ours is not None and theirs is not None:
        apart = [abs(one - other) for one, other in zip(ours, theirs, strict=True)]
    advantages = row["advantages"] or none
    tokens: list[list[object]] = []
    for place, one in enumerate(mask):
        tokens.append([words[place], one, _rounded(advantages[place]), _rounded(apart[place])])
    return tokens


def _rounded(value: float | None) -> float | None:
    if value is None or value != value or value in (float("inf"), float("-inf")):
        return None
    return float(f"{value:.4g}")


def _cut(text: str) -> str:
    left_out = len(text) - MOST_CHARACTERS
    if left_out <= 0:
        return text
    return f"{text[:MOST_CHARACTERS]}... ({left_out} more characters)"


def _thumbnail(path: Path) -> str | None:
    """Return a small picture as a `data:` URL, of a video its first frame; None if the file is
    gone."""
    from PIL import Image

    try:
        with Image.open(path) as file:
            picture = file.convert("RGB")
    except OSError:
        return None
    picture.thumbnail((PICTURE_SIDE, PICTURE_SIDE))
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
