"""The loss of supervised fine-tuning beside TRL's SFTTrainer: the same rows, tokens and weights.

    pip install --no-deps --target DIR trl==1.16.0
    PYTHONPATH=DIR .venv/bin/python -m benchmarks.sft_trl [MODEL]

Rows are those of `{log_lines: 16}`, tokens and taught turns those of the domain `sft`; TRL gets
them as `input_ids` and `completion_mask`, and computes its own loss over one batch. Prints both
losses and their distance. MODEL is a folder or a name; unset is the embedded SmolLM2-135M-Instruct.
"""

import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from rl_core.builtin.data.log_lines import LogLinesSpec, materialise_log_lines
from rl_core.data.prepare.prompt_items import ItemMaker
from rl_core.data.read.readers import raw_values
from rl_core.models.bundle import ModelBundle
from rl_core.models.locate import locate
from rl_core.rollout.chat.taught_row import TaughtEncoder, TaughtRow
from rl_core.rollout.chat.vision import chat_format
from rl_core.runtime.home import Home
from schemas.rows.conversation_rows import conversation_row
from schemas.sections.policy import ModelConfig
from schemas.sections.sft import SftConfig

NUM_ROWS = 16
TOLERANCE = 1e-5
USUAL = "embedded:smollm2-135m-instruct"


def main(path: str = USUAL) -> int:
    """Print both losses; return 1 if they differ by more than `TOLERANCE`."""
    source = locate(path, Home.default().models)
    bundle = ModelBundle(source, ModelConfig(path=path))
    encode = TaughtEncoder(chat_format(bundle, {}), SftConfig(), 2048)
    with tempfile.TemporaryDirectory() as folder:
        file = materialise_log_lines(LogLinesSpec(log_lines=NUM_ROWS, seed=1), folder)
        make = ItemMaker(has_answers=True)
        rows = []
        for raw in raw_values(file):
            if isinstance(raw.value, dict):
                rows.append(encode(make(conversation_row(raw.value), f"row {raw.number}")))
        theirs = loss_of_trl(source, bundle.tokenizer, rows, Path(folder))
    ours = loss_of_ours(bundle.policy, rows)
    distance = abs(ours - theirs)
    print(f"ours {ours:.7f}   TRL {theirs:.7f}   distance {distance:.1e}")
    return int(not math.isfinite(distance) or distance > TOLERANCE)


def loss_of_ours(policy: Any, rows: list[TaughtRow]) -> float:
    """Return the mean over all taught tokens, one row at a time."""
    total, count = 0.0, 0
    for row in rows:
        ids = torch.tensor([[*row.prompt, *row.response]])
        ones, mask = torch.ones_like(ids), torch.tensor([row.mask])
        with torch.no_grad():
            found = policy(ids, ones, torch.arange(ids.shape[1])[None], mask)[0]
        total -= float(found.double().sum())
        count += sum(row.mask)
    return total / count


def loss_of_trl(source: str, tokenizer: Any, rows: list[TaughtRow], folder: Path) -> float:
    """Return the loss of TRL's trainer on one batch of all rows."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM
    from trl import SFTConfig, SFTTrainer

    table = Dataset.from_list(
        [
            {
                "input_ids": [*row.prompt, *row.response],
                "completion_mask": [0] * len(row.prompt) + row.mask,
            }
            for row in rows
        ]
    )
    trainer = SFTTrainer(
        AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32),
        args=SFTConfig(
            output_dir=str(folder / "trl"),
            per_device_train_batch_size=len(rows),
            completion_only_loss=True,
            use_cpu=True,
            bf16=False,
            report_to=[],
        ),
        train_dataset=table,
        processing_class=tokenizer,
    )
    trainer.model.eval()
    batch = next(iter(trainer.get_train_dataloader()))
    with torch.no_grad():
        return float(trainer.compute_loss(trainer.model, batch))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
