"""Rollouts on disk without a training: batches as an engine gives them, stored by the recorder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from rl_core.data_proto import DataProto
from rl_core.rollout.sample_ids import id_columns
from rl_core.runs.rollouts.recorder import RolloutRecorder
from rl_core.runs.run_folder import RunFolder
from rl_core.trainers.step_record import Portion, StepRecord
from schemas.recipe import Recipe

PROMPT, REPLY = 3, 5
"""Widths of a batch."""


def recipe(**changes: Any) -> Recipe:
    values = {"name": "stored", "model": {"path": "m"}, "data": {"train": ["a"], "eval": ["b"]}}
    return Recipe.model_validate(values | changes)


def batch(
    groups: Sequence[str], replies: Sequence[str], rewards: Sequence[float], **columns: Any
) -> DataProto:
    """Rows of one turn; row i has i % 5 + 1 tokens."""
    num = len(groups)
    used = torch.tensor([[place <= row % REPLY for place in range(REPLY)] for row in range(num)])
    ids = torch.arange(num * (PROMPT + REPLY)).view(num, -1)
    before = torch.tensor([[0, 1, 1]]).repeat(num, 1)
    tensors = {
        "input_ids": ids,
        "attention_mask": torch.cat([before, used.long()], 1),
        "response_mask": used.long(),
        "rollout_log_probs": torch.linspace(-2, -1, num * REPLY).view(num, -1) * used,
        "advantages": torch.tensor(rewards)[:, None] * used,
        "turn_rewards": torch.zeros(num, REPLY),
        "rewards": torch.tensor(rewards),
        "failed": torch.zeros(num, dtype=torch.bool),
        "num_tokens": used.sum(1),
    }
    lengths = used.sum(1).tolist()
    turns = [
        [
            {
                "role": "assistant",
                "content": text,
                "num_tokens": length,
                "reward": reward,
                "seconds": 1.0,
            }
        ]
        for text, length, reward in zip(replies, lengths, rewards, strict=True)
    ]
    words = {
        "uid": list(groups),
        "prompt": [[{"role": "user", "content": f"asked about {one}"}] for one in groups],
        "turns": turns,
        "response": list(replies),
        "ground_truth": ["3"] * num,
        "stop_reason": ["eos"] * num,
        "env_class": ["gsm8k"] * num,
        "env_metrics": [{"right": reward} for reward in rewards],
        "env_seconds": [0.5] * num,
    }
    texts = {key: value for key, value in columns.items() if isinstance(value, list)}
    numbers = {key: value for key, value in columns.items() if not isinstance(value, list)}
    return DataProto.from_dict(tensors | numbers, id_columns(list(groups)) | words | texts)


def store(
    root: Path, steps: Mapping[int, DataProto], tracking: str = "all", **changes: Any
) -> Path:
    """Store one batch a step. Returns: the folder of the files."""
    folder = RunFolder(root)
    recorder = RolloutRecorder(recipe(tracking={"rollouts": tracking}, **changes), folder)
    for step, rows in steps.items():
        record = StepRecord(step, seconds={"rollout": 1.5})
        logs = rows.tensor("rollout_log_probs") + 0.25 * rows.tensor("response_mask")
        record.tracks = {"text": [Portion(rows, log_probs=(logs[:1], logs[1:]))]}
        recorder.put(record)
    recorder.flush()
    return folder.rollouts
