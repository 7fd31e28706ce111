"""Rows of every contract, and what can be wrong with them."""

import copy
import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image

from schemas.rows.contract import SchemaName

Row = dict[str, Any]

NOTHING = object()
DEEP: Any = "x"
for _ in range(60):
    DEEP = [DEEP]
VALUES = (
    *(NOTHING, None, "", " \n", "x", "5", "robot", "café", "x" * 5_000, "a\0b"),
    *(0, 1, -1, 2.5, 10**30, 1e300, math.nan, math.inf, True, False),
    *([], [None], ["x"], [["x"]], [{}], {}, {"x": 1}, {"role": "user"}, DEEP),
)
"""Values that any place of a row may get; `NOTHING` takes the place out."""


def message(role: str, text: str) -> Row:
    return {"role": role, "content": text}


def asked(env: str, truth: Any, text: str = "2+3?", **more: Any) -> Row:
    spec = {"method": "rule", "ground_truth": truth}
    return {"prompt": [message("user", text)], "env_class": env, "reward_spec": spec, **more}


def chain_sum() -> Row:
    """A row of reasoning-gym with its own question."""
    from reasoning_gym.factory import create_dataset

    entry = create_dataset("chain_sum", seed=1, size=1)[0]
    info = {"task": "chain_sum", "seed": 1, "index": 0, "question": entry["question"]}
    return asked("reasoning_gym", entry["answer"], entry["question"], extra_info=info)


def good_rows(schema: SchemaName) -> list[Row]:
    """Rows without a fault, one for each environment or shape of the contract."""
    image = {"modality": "image", "role": "condition", "uri": "good.png"}
    tests = [{"input": "1\n", "output": "2\n"}]
    pair = {"question": "2+3?", "chosen": "5", "rejected": "6"}
    said = [message("user", "2+3?"), message("assistant", "5")]
    rows: dict[SchemaName, list[Row]] = {
        SchemaName.PROMPT: [
            asked("gsm8k", "5", data_source="s", ability="a", extra_info={"index": 1}),
            asked("gsm8k_multi_turn", 5, max_turns=2),
            asked("aime", "5", images=["good.png"]),
            asked("geo3k", "5"),
            asked("search", {"target": ["five", "5"]}),
            asked("searchcode", "5"),
            asked("lcb", tests),
            asked("lcb", {"inputs": ["1\n"], "outputs": ["2\n"]}),
            asked("multiple_choice", "A", options={"A": "five", "B": "six"}),
            asked("text2sql", "SELECT 1", db_id="shop", data_source="spider"),
            {**asked("gsm8k", "5"), "prompt": "as a text"},
            chain_sum(),
            {
                "responses_create_params": {"input": [message("user", "2+3?")]},
                "expected_answer": "5",
                "env_class": "gsm8k",
            },
        ],
        SchemaName.MEDIA: [
            {"prompt": "a cat", "prompt_id": "x", "metadata": {"k": 1}},
            {"caption": "a dog", "media_refs": [image]},
            {"prompt": "a cow", "media": [image], "prompt_id": 7},
        ],
        SchemaName.PREFERENCE: [
            pair,
            {**pair, "image": "good.png"},
            {**pair, "image": ["good.png"]},
            {"prompt": [said[0]], "chosen": [said[1]], "rejected": [message("assistant", "6")]},
            {"chosen": said, "rejected": [said[0], message("assistant", "6")], "system": "Brief."},
            {
                "input": {"messages": [said[0]]},
                "preferred_output": [said[1]],
                "non_preferred_output": [message("assistant", "6")],
            },
            {
                "context": [said[0]],
                "completions": [
                    {"rank": 0, "completion": [said[1]]},
                    {"rank": 1, "completion": [message("assistant", "6")]},
                ],
            },
            {
                "instruction": "2+3?",
                "completions": [
                    {"overall_score": 5.0, "response": "5"},
                    {"overall_score": 1.0, "response": "6"},
                ],
            },
        ],
        SchemaName.RESPONSE: [{"responses_create_params": {"input": [message("user", "2+3?")]}}],
    }
    return rows[schema]


SPECIAL: dict[SchemaName, list[tuple[str, Any]]] = {
    SchemaName.PROMPT: [
        *(("images", [one]) for one in ("nowhere.png", "broken.png", {"path": "good.png"})),
        *(("images", [one]) for one in ({"bytes": "AAAA"}, {"bytes": None, "path": "broken.png"})),
        *(("env_class", one) for one in ("gsm9k", "GSM8K", "lcb", "text2sql")),
        *(("prompt[0].role", one) for one in ("system", "assistant", "tool", "developer")),
        *(("prompt[0].content", [{"type": "text", "text": one}]) for one in ("hi", "", 5)),
        *(
            ("reward_spec.ground_truth", one)
            for one in ("five", "1/2", [5, "6"], ["five"], ["", "5"])
        ),
        ("reward_spec.ground_truth", '[{"input": "1", "output": "1"}]'),
        ("reward_spec.ground_truth", "SELECT nothing FROM nowhere"),
        ("reward_spec.ground_truth", "SELECT nope("),
        ("reward_spec.ground_truth[0].output", ""),
        ("extra_info.question", "another?"),
        ("extra_info.task", "no_such_task"),
        ("extra_info.config", "{"),
        ("extra_info.config", {"min_terms": "x"}),
        ("db_id", "nowhere"),
        ("db_id", "../shop"),
        ("max_turns", 1.0),
    ],
    SchemaName.MEDIA: [
        *(("media_refs[0].uri", one) for one in ("nowhere.png", "broken.png", "ftp://h/a.png")),
        *(("media[0].uri", one) for one in ("http://127.0.0.1:9/a.png", "~/x.png", "a\0.png")),
        ("media_refs[0].modality", "video"),
        ("media_refs[0].role", "source"),
        ("text_ids", [1]),
        ("prompt", '[{"role": "user", "content": "x"}]'),
    ],
    SchemaName.PREFERENCE: [
        *(("image", one) for one in ("nowhere.png", "broken.png", ["good.png", "nowhere.png"])),
        ("rejected", "5"),
        ("rejected", "  5 "),
        ("chosen[1].role", "user"),
        ("completions[0].rank", 1),
        ("completions[0].overall_score", 1.0),
    ],
    SchemaName.RESPONSE: [],
}
"""What is wrong with rows of one contract alone: a place, and its value."""


def places(value: Any, where: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of everything in a row."""
    if where:
        yield where
    if isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(part, (*where, key))


def damaged(row: Row, where: tuple[Any, ...], value: Any) -> Row:
    """Return a copy of a row with another value at a place, whose parents may not be there."""
    made = copy.deepcopy(row)
    holder: Any = made
    for key in where[:-1]:
        holder = holder.setdefault(key, {}) if isinstance(holder, dict) else holder[key]
    if value is not NOTHING:
        holder[where[-1]] = copy.deepcopy(value)
    elif isinstance(holder, dict):
        holder.pop(where[-1], None)
    else:
        del holder[where[-1]]
    return made


def damaged_rows(schema: SchemaName, seed: int, num_rows: int) -> list[Row]:
    """Return the good rows, every special damage that fits one, and a sample of all others."""
    good = good_rows(schema)
    rows = [
        damaged(row, at, value)
        for row in good
        for place, value in SPECIAL[schema]
        if (at := path_of(place)) in known(row, at)
    ]
    others = [(row, at, value) for row in good for at in places(row) for value in VALUES]
    random.Random(seed).shuffle(others)
    return numbered([*good, *rows, *(damaged(*one) for one in others[:num_rows])])


def numbered(rows: list[Row]) -> list[Row]:
    """Return rows with their number in `n`, which an environment and a prompt's metadata keep, and
    ids of their own; the last two have the same."""
    for number, row in enumerate(rows, start=1):
        row["n"] = number
        if isinstance(row.get("metadata"), dict):
            row["metadata"]["n"] = number
        if row.get("prompt_id") in ("x", 7):
            row["prompt_id"] = f"{row['prompt_id']}-{number}"
    with_ids = [row for row in rows if str(row.get("prompt_id")).startswith("x-")]
    for row in with_ids[-2:]:
        row["prompt_id"] = "twice"
    return rows


def path_of(text: str) -> tuple[Any, ...]:
    """Read `prompt[0].role`."""
    parts = text.replace("[", ".").replace("]", "").split(".")
    return tuple(int(part) if part.isdigit() else part for part in parts)


def known(row: Row, at: tuple[Any, ...]) -> set[tuple[Any, ...]]:
    """Return the places of a row at which a value may be put: its own, and new keys of objects."""
    own = set(places(row))
    return own | ({at} if len(at) == 1 or (at[:-1] in own and isinstance(at[-1], str)) else set())


def write_rows(path: Path, rows: list[Row]) -> Path:
    """Write JSON Lines beside a good, a broken and no picture."""
    Image.new("RGB", (4, 4)).save(path.with_name("good.png"))
    path.with_name("broken.png").write_bytes(path.with_name("good.png").read_bytes()[:40])
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
