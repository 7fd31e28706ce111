"""An agent that shows the model pictures, through the whole flow on the tiny vision-language
model."""

import base64
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
import yaml

from rl_core.builtin.models.tiny_vlm import IMAGE_TOKENS
from rl_core.models.bundle import ModelBundle
from rl_core.rollout.chat.vision import VisionChat, chat_format
from schemas.recipe import ModelConfig
from tests.e2e.conftest import train_here
from tests.e2e.outcomes import logged_metrics, run_folder
from tests.e2e.picture_agent import plain_png

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.usefixtures("ray_cluster")]


def test_rows_of_an_agent_train_with_the_pictures_that_were_sampled(
    tiny_vlm_dir: Path, tmp_path: Path
) -> None:
    values = {
        "name": "look-twice",
        "domain": "vision",
        "model": {"path": str(tiny_vlm_dir), "frozen": []},
        "fsdp": {"param_dtype": "float32"},
        "data": {
            "train": [{"pictures": 12, "seed": 1}],
            "eval": [{"pictures": 4, "seed": 2}],
            "max_prompt_length": 128,
            "default_env_class": "look_twice",
        },
        "environments": {"look_twice": {"agent": "tests.e2e.picture_agent:look_twice"}},
        "algorithm": {"name": "grpo"},
        "rollout": {"samples_per_prompt": 4, "max_new_tokens": 6, "max_context_length": 400},
        "training": {"num_iterations": 1, "steps_per_iteration": 2, "prompts_per_step": 2},
        "evaluation": {"max_new_tokens": 6},
        "placement": {"threads_per_device": 1},
    }
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(values))
    train_here(recipe, tmp_path / "home")
    metrics = {name: steps[-1] for name, steps in logged_metrics(tmp_path / "home").items()}
    assert metrics["delta_log_prob_max"] < 1e-3, "the trainer saw other pictures than the engine"
    rows: list[dict[str, Any]] = []
    for file in sorted((run_folder(tmp_path / "home") / "rollouts").glob("*.parquet")):
        rows += pq.read_table(file).to_pylist()
    assert len(rows) >= 16 and not any(row["failed"] for row in rows)
    # An untrained model writes a picture's token itself now and then, which begins another row.
    whole = [row for row in rows if row["step"] == 1 and row["num_turns"] == 2]
    assert len(whole) >= 6
    for row in whole:
        shown = json.loads(row["turns"][1]["content"])
        assert shown[0] == {"type": "image_url", "image_url": "in the row"}, "not its bytes"
    check_against_direct_forward(tiny_vlm_dir, whole)


def check_against_direct_forward(folder: Path, rows: list[dict[str, Any]]) -> None:
    """The tokens and log-probabilities of rows are those of the start model, given the whole
    conversation with the same pictures."""
    bundle = ModelBundle(str(folder), ModelConfig(path=str(folder)))
    chat = chat_format(bundle, {})
    assert isinstance(chat, VisionChat)
    policy = bundle.policy.eval()
    for row in rows:
        first = row["turns"][0]["content"]
        asked = [
            *json.loads(row["prompt"]),
            {"role": "assistant", "content": first},
            {"role": "user", "content": "<image>What is here?"},
        ]
        second = f"data:;base64,{base64.b64encode(plain_png(len(first))).decode()}"
        read = chat.reader(asked, [*row["pictures"], second])
        ids, mask = row["prompt_ids"] + row["response_ids"], row["response_mask"]
        places = [number for number, token in enumerate(ids) if token == chat.image_token_id]
        assert len(places) == 2 * IMAGE_TOKENS
        # What the model wrote may be tokenized in another way; what is around it is not.
        before, after = len(row["prompt_ids"]), mask.index(0)
        last = mask.index(1, after) - after
        assert read.token_ids[:before] == row["prompt_ids"]
        assert read.token_ids[-last:] == row["response_ids"][after : after + last]
        with torch.no_grad():
            log_probs, _ = policy(
                torch.tensor([ids]),
                torch.ones(1, len(ids)).long(),
                torch.arange(len(ids))[None],
                torch.tensor([mask]),
                media_B=[read.media],
            )
        spoken = torch.tensor(mask).bool()
        drawn = torch.tensor(row["rollout_log_probs"])[spoken]
        assert torch.allclose(log_probs[0][spoken], drawn, atol=1e-4)
