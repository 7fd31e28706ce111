"""Prompts with pictures: one rank and two ranks train the same, also where a pass shows no picture
at all."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rl_core.builtin.data.pictures import draw
from rl_core.builtin.models.tiny_vlm_lessons import reply_of
from rl_core.data.read.row_images import placed_images
from rl_core.data_proto import DataProto, pad_rows
from rl_core.models.bundle import ModelBundle
from rl_core.models.decoding.decode import positions_of
from rl_core.models.vlm import VLMPolicy
from rl_core.ranks.rank_info import RankInfo
from rl_core.rollout.chat.vision import chat_format
from schemas.recipe import ModelConfig
from tests.train.jobs import Setup, largest_difference, make_backend, make_stack, shard_of
from tests.train.ranks import Ranks

NUM_STEPS, NUM_PROMPTS, NUM_SIBLINGS = 2, 4, 2


def rows_with_pictures(bundle: ModelBundle, seed: int) -> DataProto:
    """Siblings that share a picture; the last prompt, which is a whole micro-batch of two ranks,
    shows none."""
    chat, rng = chat_format(bundle, {}), random.Random(seed)
    prompts, replies, media = [], [], []
    for number in range(NUM_PROMPTS):
        picture = draw(rng)
        last = number == NUM_PROMPTS - 1
        shown = placed_images(
            [] if last else [{"bytes": picture.png}], "rows.parquet", f"row {number}"
        )
        asked = picture.questions[0]
        message = [{"role": "user", "content": asked.text}]
        encoded = chat.encode_prompt(message, {"env_extras": {"images": shown}})
        for sibling in range(NUM_SIBLINGS):
            prompts.append(torch.tensor(encoded.token_ids))
            replies.append(torch.tensor(bundle.tokenizer.encode(reply_of(asked))[: 5 + sibling]))
            media.append(encoded.media)
    masks = [torch.ones_like(ids) for ids in prompts], [torch.ones_like(ids) for ids in replies]
    mask_BT = pad_rows(masks[1], 0)
    attention = torch.cat([pad_rows(masks[0], 0, left=True), mask_BT], 1)
    signs_B = torch.tensor([1.0, -1.0]).repeat(NUM_PROMPTS)
    tensors = {
        "input_ids": torch.cat([pad_rows(prompts, 0, left=True), pad_rows(replies, 0)], 1),
        "attention_mask": attention,
        "position_ids": positions_of(attention),
        "response_mask": mask_BT,
        "advantages": signs_B[:, None] * mask_BT,
    }
    return DataProto.from_dict(tensors, {"media": media})


def train(
    rank_info: RankInfo, model_dir: str
) -> tuple[dict[str, Tensor], list[tuple[float, float]]]:
    """The trained weights (rank 0 only), and loss and gradient norm of each step."""
    bundle = ModelBundle(model_dir, ModelConfig(path=model_dir, frozen=[]))
    assert isinstance(bundle.policy, VLMPolicy) and bundle.policy.blank is not None
    setup = Setup(model_dir)
    backend = make_backend(rank_info, setup, bundle=bundle)
    stack = make_stack(backend, setup)
    results = [
        stack.train(shard_of(rank_info, rows_with_pictures(bundle, step)))
        for step in range(NUM_STEPS)
    ]
    return backend.full_state(), [(result.loss, result.grad_norm) for result in results]


@pytest.mark.slow
def test_two_ranks_train_what_one_rank_trains(ranks: Ranks, tiny_vlm_dir: Path) -> None:
    ((one, measured),) = ranks.run(1, train, str(tiny_vlm_dir))
    (two, measured_0), (_, measured_1) = ranks.run(2, train, str(tiny_vlm_dir))
    assert measured_0 == measured_1
    np.testing.assert_allclose(measured, measured_0, atol=2e-5)
    assert largest_difference(one, two) < 2e-5
    start: Any = ModelBundle(
        str(tiny_vlm_dir), ModelConfig(path=str(tiny_vlm_dir))
    ).policy.state_dict()
    towers = [name for name in one if "vision_model" in name and name in start]
    assert towers and any(not torch.allclose(one[name], start[name], atol=1e-4) for name in towers)
