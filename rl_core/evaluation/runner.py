"""Evaluation on held-out rows: the row of each reply, and the receipt of one reply per prompt."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from rl_core.data.prepare.items import Item
from rl_core.data.store.atomic import atomic_write_text
from rl_core.envs.faults import no_verdicts
from rl_core.evaluation.calibration import calibration
from rl_core.evaluation.intervals import wilson_interval
from rl_core.evaluation.passes import FULL_REWARD, is_binary
from rl_core.evaluation.rows import PlayedRow, Row, number
from rl_core.rollout.sample_ids import GROUP, SAMPLE, named_error
from schemas.receipts import EvalReceipt

if TYPE_CHECKING:
    from rl_core.data_proto import DataProto
    from rl_core.distributed import DataProtoRef

WRITTEN = (GROUP, SAMPLE, "uid", "prompt", "response", "ground_truth", "stop_reason")
"""Columns of a batch that are stored with each row."""
COMPLETE = ("eos", "stop")
"""Reasons why a reply ended that was not cut off."""
ANSWER: Final = "answer"
"""Key of a row with the answer that its environment read, if it reads answers."""
PASSED: Final = "passed"
"""Key of a row that says whether it passed, where that is not reward 1 against 0."""
ERROR: Final = "error"
"""Key of a row without a verdict, with the reason."""


@dataclass(frozen=True)
class Judging:
    """Rules by which rewards of held-out rows are judged."""

    marks: Mapping[str, float | None]
    """Reward from which a reply passes, by environment; None where nothing says it."""
    otherwise: float | None = None
    """The same for rows without an environment."""
    max_failed_share: float = 0.0
    """Largest share of rows without a verdict, above which the evaluation fails."""

    def mark(self, item: Item) -> float | None:
        """Return the reward from which the reply to a prompt passes."""
        return self.marks.get(item.get("env_class", ""), self.otherwise)


BINARY = Judging({})
"""Judging of rewards of which nothing is known."""


def eval_digest(items: Sequence[Item]) -> str:
    """Return the digest of a set of held-out rows, independent of order."""
    return hashlib.sha256("\n".join(sorted(item["uid"] for item in items)).encode()).hexdigest()


def played_rows(
    played: DataProto | DataProtoRef,
    items: Sequence[Item],
    *,
    scores: Sequence[str] = (),
    made: Sequence[str] = (),
) -> list[PlayedRow]:
    """Return a row per reply, with its name, prompt, answer and reward.

    Args: items: one per reply. scores: further columns [B] of `played`; NaN where a row has none.
    made: files of the first rows' samples.
    """
    texts = played.non_tensor_batch
    rewards = played.tensor("rewards").tolist()
    further = {name: played.tensor(name).tolist() for name in scores}
    lengths = played.tensor("num_tokens").tolist()
    answers = texts["env_answer"] if "env_answer" in texts else [None] * len(items)
    rows: list[PlayedRow] = []
    for row, item in enumerate(items):
        images = item.get("env_extras", {}).get("images")
        found: dict[str, object] = {key: texts[key][row] for key in WRITTEN}
        found |= {"reward": rewards[row], "num_tokens": lengths[row]}
        found |= {name: values[row] for name, values in further.items()}
        found |= {"made": made[row]} if row < len(made) else {}
        found |= {"images": images} if images else {}
        if texts["error"][row]:
            found |= {ERROR: named_error(played, row), "reward": math.nan}
        if answers[row] is not None:
            found[ANSWER] = answers[row]
        # Scores are keys that a PlayedRow cannot name.
        rows.append(cast(PlayedRow, found))
    return rows


def judged(rows: Sequence[PlayedRow], items: Sequence[Item], judging: Judging) -> list[PlayedRow]:
    """Return the rows with the key `passed` where rewards are not all 0 or 1, and it is known.

    Raises: RewardError when more rows than allowed have no verdict; BrokenCode when the user's code
    raised an error of its own in each of them.
    """
    broken = [row[ERROR] for row in rows if ERROR in row]
    if len(broken) > judging.max_failed_share * len(rows) or len(broken) == len(rows):
        raise no_verdicts(
            f"{len(broken)} of {len(rows)} held-out rows failed in their environment; first: "
            f"{broken[0]}",
            broken,
        )
    marks = [judging.mark(item) for item in items]
    kept = [row["reward"] for row in rows if ERROR not in row]
    if (is_binary(kept) and all(mark in (None, FULL_REWARD) for mark in marks)) or None in marks:
        return list(rows)
    return [
        row if ERROR in row else {**row, PASSED: float(row["reward"] >= mark)}
        for row, mark in zip(rows, marks, strict=True)
        if mark is not None
    ]


def is_graded(rows: Sequence[Row]) -> bool:
    """Return True if rewards are neither all 0 or 1, nor known to pass or not."""
    kept = [row for row in rows if ERROR not in row]
    if all(PASSED in row for row in kept):
        return False
    return not is_binary([number(row, "reward") for row in kept])


def has_passed(row: Row) -> float:
    """Return 1 if a row passed, else 0; NaN if it has no verdict."""
    if ERROR in row:
        return math.nan
    if PASSED in row:
        return float(number(row, PASSED))
    return float(number(row, "reward") >= FULL_REWARD)


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Store rows as JSON Lines."""
    atomic_write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def read_samples(path: str | Path) -> list[PlayedRow]:
    """Read the rows that `write_rows` wrote."""
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def summarise(
    rows: Sequence[PlayedRow],
    items: Sequence[Item],
    label: str,
    step: int,
    samples_path: Path,
    *,
    scores: Sequence[str] = (),
    judging: Judging = BINARY,
) -> EvalReceipt:
    """Return the receipt of one reply to each held-out row; write the rows to `samples_path`.

    Args: scores: further keys of the rows, which are means in the receipt. Raises: RewardError when
    more rows than allowed have no verdict, since the accuracy would then be a guess.
    """
    rows = judged(rows, items, judging)
    kept = [row for row in rows if ERROR not in row]
    num_right = int(sum(map(has_passed, kept)))
    low, high = wilson_interval(num_right, len(kept))
    write_rows(samples_path, rows)
    return EvalReceipt(
        label=label,
        step=step,
        num_rows=len(rows),
        accuracy=num_right / len(kept),
        mean_reward=sum(row["reward"] for row in kept) / len(kept),
        ci_low=low,
        ci_high=high,
        mean_length=sum(row["num_tokens"] for row in kept) / len(kept),
        truncated_share=sum(row["stop_reason"] not in COMPLETE for row in kept) / len(kept),
        samples_path=str(samples_path),
        eval_digest=eval_digest(items),
        scores={name: _mean([row[name] for row in kept]) for name in scores} | calibration(kept),
        graded=is_graded(rows),
        num_failed=len(rows) - len(kept),
    )


def _mean(values: Sequence[float]) -> float:
    """Return the mean over the rows that have a value; NaN if none has."""
    known = [value for value in values if not math.isnan(value)]
    if known:
        return sum(known) / len(known)
    return math.nan
