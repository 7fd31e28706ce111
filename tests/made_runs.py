"""Finished runs without the training: folder, MLflow run and version as a training leaves them, by
the same writers."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_core.data.store.weights import weights_digest
from rl_core.evaluation.intervals import wilson_interval
from rl_core.runs.recipes import parse_recipe
from rl_core.runs.run_folder import RunFolder
from rl_core.runs.session import session_for
from schemas.receipts import EvalReceipt, RunPlan
from tasks.open_run import open_run
from tasks.prepare_cache import prepare_cache
from tasks.register_model import register_model
from tasks.validate_data import validate_data


def write_rows(path: Path, questions: Sequence[str]) -> Path:
    """Rows of gsm8k whose answer is 3."""
    rows = [
        {
            "prompt": [{"role": "user", "content": question}],
            "env_class": "gsm8k",
            "reward_spec": {"method": "rule", "ground_truth": "3"},
        }
        for question in questions
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def recipe_of(name: str, folder: Path, model: Path, **changes: Any) -> dict[str, Any]:
    """A recipe over four training and four held-out rows in `folder`; two steps."""
    values = {
        "name": name,
        "model": {"path": str(model)},
        "data": {
            "train": [str(write_rows(folder / "train.jsonl", ["1+2", "2+1", "0+3", "4-1"]))],
            "eval": [str(write_rows(folder / "held-out.jsonl", ["3+0", "5-2", "6-3", "7-4"]))],
        },
        "training": {"num_iterations": 1, "steps_per_iteration": 2},
    }
    return parse_recipe({**values, **changes}).model_dump(mode="json")


@dataclass
class MadeRun:
    """A run whose two evaluations are there."""

    plan: RunPlan
    baseline: EvalReceipt
    final: EvalReceipt

    @property
    def folder(self) -> RunFolder:
        return RunFolder(Path(self.plan.run_dir))


def make_run(
    recipe: dict[str, Any],
    before: Sequence[float],
    after: Sequence[float],
    *,
    fresh: bool = False,
    start_from=None,
) -> MadeRun:
    """Open a run and leave what two steps and two evaluations leave.

    Args: before, after: reward of each held-out row.
    """
    report = validate_data.fn(recipe)
    plan = open_run.fn(
        recipe, report, prepare_cache.fn(recipe, report), fresh=fresh, start_from=start_from
    )
    folder = RunFolder(Path(plan.run_dir))
    steps = [
        {"step": step, "reward_mean": 0.2 * step, "reward_std": 0.3, "loss": 1.0 / step}
        | {"seconds/rollout": 2.0, "seconds/train": step}
        for step in (1.0, 2.0)
    ]
    folder.save_steps(1, steps)
    with folder.publish_checkpoint(1, {"step": 2}, keep_last=1):
        pass
    made = MadeRun(
        plan, evaluated(folder, "baseline", 0, before), evaluated(folder, "final", 2, after)
    )
    for receipt in (made.baseline, made.final):
        session_for(plan).tracking.log_artifact(Path(receipt.samples_path), "samples")
    session_for(plan).tracking.flush()
    return made


def register(made: MadeRun, weights: bytes = b"weights"):
    """Export (a file of bytes) and register the run's version."""
    model = made.folder.export
    model.mkdir(exist_ok=True)
    (model / "model.safetensors").write_bytes(weights)
    assert weights_digest(model)
    return register_model.fn(made.plan, made.baseline, made.final)


def evaluated(folder: RunFolder, label: str, step: int, rewards: Sequence[float]) -> EvalReceipt:
    """Leave what an evaluation of the held-out rows leaves. Args: rewards: of each row."""
    path = folder.root / "samples" / f"evaluate-{label}.jsonl"
    rows = [
        {
            "uid": f"row-{number}",
            "prompt": [{"role": "user", "content": f"<b>question {number}</b>"}],
            "response": f"{label} says {reward}",
            "ground_truth": "3",
            "stop_reason": "eos",
            "reward": reward,
            "num_tokens": 4,
        }
        for number, reward in enumerate(rewards)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    num_right = sum(reward >= 1 for reward in rewards)
    low, high = wilson_interval(num_right, len(rewards))
    receipt = EvalReceipt(
        label=label,
        step=step,
        num_rows=len(rewards),
        accuracy=num_right / len(rewards),
        mean_reward=sum(rewards) / len(rewards),
        ci_low=low,
        ci_high=high,
        mean_length=4.0,
        truncated_share=0.0,
        samples_path=str(path),
        eval_digest=f"{len(rewards)} rows",
    )
    folder.save_receipt(f"evaluate-{label}", receipt)
    return receipt
