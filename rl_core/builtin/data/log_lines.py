"""Log lines with the records that they say, so that supervised fine-tuning can be tried without a
download.

`{log_lines: 400, seed: 1}` in a recipe's data stands for such rows: a line as some service wrote
it, and as the answer the same in JSON, with fixed keys in a fixed order. A model that was not told
the form cannot guess it, and one that learnt it has to copy from the line. A line belongs to train
or eval by its text alone, so the splits share none.
"""

import hashlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field

from rl_core.builtin.data.reasoning_problems import belongs_to_eval
from rl_core.data.store.atomic import atomic_writer
from schemas.sections.section import Section

_VERSION = "1"
_EVAL_FRACTION = 0.2
SERVICES = ("auth", "billing", "cart", "mail", "search", "stock", "upload", "worker")
USERS = ("ada", "alan", "barbara", "claude", "dennis", "edsger", "grace", "ken", "linus", "tony")
LEVELS = ("INFO", "WARN", "ERROR")
EVENTS = ("login", "logout", "order", "payment", "refund", "retry", "timeout", "update")


class LogLinesSpec(Section):
    """Number and seed of log lines to write, with the records that they say."""

    log_lines: int = Field(ge=1)
    """Number of rows, each with a line of its own."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed of the lines."""
    split: Literal["train", "eval"] = "train"
    """Side of the split by line."""
    env_class: str | None = "exact_match"
    """Environment that grades the replies of evaluations; null names none, so that only the
    likelihood of the records is measured."""
    form: Literal["conversation", "prompt"] = "conversation"
    """`conversation` shows the record as the assistant's turn, to learn from; `prompt` leaves it to
    the reward, for RL."""


def planned_log_lines(spec: LogLinesSpec, folder: Path | str) -> Path:
    """Return the file that `materialise_log_lines` writes, without writing it."""
    form = {"form"} if spec.form == "conversation" else None
    values = json.dumps({"version": _VERSION, **spec.model_dump(exclude=form)}, sort_keys=True)
    digest = hashlib.sha256(values.encode()).hexdigest()[:12]
    return Path(folder).expanduser() / f"log-lines-{spec.split}-{digest}.jsonl"


def materialise_log_lines(spec: LogLinesSpec, folder: Path | str) -> Path:
    """Write the rows of `spec` once; an existing file is reused."""
    path = planned_log_lines(spec, folder)
    if not path.is_file():
        with atomic_writer(path) as file:
            for row in _rows(spec):
                file.write(json.dumps(row) + "\n")
    return path


def _rows(spec: LogLinesSpec) -> Iterator[dict[str, object]]:
    rng, seen = random.Random(f"log lines {spec.seed}"), set[str]()
    while len(seen) < spec.log_lines:
        line, record = _draw(rng)
        if line in seen or belongs_to_eval(line, _EVAL_FRACTION) != (spec.split == "eval"):
            continue
        seen.add(line)
        question = {"role": "user", "content": f"Read the log line.\n{line}"}
        answer = json.dumps(record, separators=(",", ":"))
        played = {} if spec.env_class is None else {"env_class": spec.env_class}
        if spec.form == "prompt":
            truth = {"method": "rule", "ground_truth": answer}
            asked = {"prompt": [question], "reward_spec": truth}
        else:
            asked = {"messages": [question, {"role": "assistant", "content": answer}]}
        yield {"data_source": "log_lines", **asked, **played}


def _draw(rng: random.Random) -> tuple[str, dict[str, object]]:
    time = f"{rng.randrange(24):02}:{rng.randrange(60):02}"
    level, service = rng.choice(LEVELS), rng.choice(SERVICES)
    user, event, took = rng.choice(USERS), rng.choice(EVENTS), rng.randrange(2, 1000)
    line = f"{time} {service} {level.lower()}: {event} of {user} took {took} ms"
    record = {"svc": service, "lvl": level, "who": user, "what": event, "ms": took, "at": time}
    return line, record
