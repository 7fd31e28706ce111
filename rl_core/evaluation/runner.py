"""Evaluation on held-out rows: one greedy reply each, in file order."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rl_core.data.store.atomic import atomic_write_text
from rl_core.data_proto import DataProto
from rl_core.distributed import DataProtoRef
from rl_core.errors import RewardError
from rl_core.evaluation.intervals import wilson_interval
from rl_core.rollout.sample_ids import GROUP, SAMPLE, named_error
from schemas.receipts import EvalReceipt

FULL_REWARD = 1.0
COMPLETE = ("eos", "stop")
"""Reasons why a reply ended that was not cut off."""


def eval_digest(items: Sequence[dict[str, Any]]) -> str:
    """Return the digest of a set of held-out rows, independent of order."""
    return hashlib.sha256("\n".join(sorted(item["uid"] for item in items)).encode()).hexdigest()


def summarise(
    played: DataProto | DataProtoRef,
    items: Sequence[dict[str, Any]],
    label: str,
    step: int,
    samples_path: Path,
    *,
    scores: Sequence[str] = (),
    made: Sequence[str] = (),
) -> EvalReceipt:
    """Return the receipt of played held-out rows; write every row's name, prompt, answer and reward
    to `samples_path`.

    Args: scores: further columns [B] of `played`, stored with the samples and, as means, in the
    receipt; NaN where a row has none. made: files of the first rows' samples. Raises: RewardError
    when an environment failed on a row, since the accuracy would then be a guess.
    """
    texts = played.non_tensor_batch
    broken = [row for row, error in enumerate(texts["error"]) if error]
    if broken:
        raise RewardError(
            f"{len(broken)} of {len(items)} held-out rows failed in their environment; first: "
            f"{named_error(played, broken[0])}"
        )
    rewards = played.tensor("rewards").tolist()
    further = {name: played.tensor(name).tolist() for name in scores}
    lengths = played.tensor("num_tokens").tolist()
    num_right = sum(reward >= FULL_REWARD for reward in rewards)
    low, high = wilson_interval(num_right, len(items))
    rows = [
        {
            key: texts[key][row]
            for key in (GROUP, SAMPLE, "uid", "prompt", "response", "ground_truth", "stop_reason")
        }
        | {"reward": rewards[row], "num_tokens": lengths[row]}
        | {name: values[row] for name, values in further.items()}
        | ({"made": made[row]} if row < len(made) else {})
        | ({"images": images} if (images := items[row].get("env_extras", {}).get("images")) else {})
        for row in range(len(items))
    ]
    atomic_write_text(
        samples_path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    )
    return EvalReceipt(
        label=label,
        step=step,
        num_rows=len(items),
        accuracy=num_right / len(items),
        mean_reward=sum(rewards) / len(rewards),
        ci_low=low,
        ci_high=high,
        mean_length=sum(lengths) / len(lengths),
        truncated_share=sum(reason not in COMPLETE for reason in texts["stop_reason"]) / len(items),
        samples_path=str(samples_path),
        eval_digest=eval_digest(items),
        scores={name: _mean(values) for name, values in further.items()},
    )


def _mean(values: Sequence[float]) -> float:
    """Return the mean over the rows that have a value; NaN if none has."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def read_samples(path: str | Path) -> list[dict[str, Any]]:
    """Read the rows that `summarise` wrote."""
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
