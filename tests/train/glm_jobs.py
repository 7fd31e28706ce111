"""What ranks do in the tests of GLM-Image: write and draw by sampling, and score it again."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_core.ranks.rank_info import RankInfo
from rl_core.rollout.diffusion.rewriting import question
from rl_core.rollout.diffusion.unified_plans import PlanWriter, contexts, planned_drawing
from rl_core.trainers.track import prompt_batch
from rl_core.trainers.tree import ID, lineage
from schemas.sections.rollout import RolloutConfig
from schemas.sections.unified import TextStage
from tests.train.unified_jobs import Setup, make_all

PROMPTS = ("a photo of 'seven'", "red")


def replayed(
    rank_info: RankInfo, setup: Setup
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Of plans, and of pictures of them: log-probabilities as sampled, and as the stacks score
    them."""
    made = make_all(rank_info, setup)
    rollout = RolloutConfig(
        samples_per_prompt=2, max_new_tokens=made.backend.policy.layout.num_tokens
    )
    writer = PlanWriter(made.backend, rollout, {}, {}, 0)
    items = {text: {"uid": text, "prompt": text, "metadata": {}} for text in PROMPTS}
    text = writer.rollout(prompt_batch([question(item, TextStage()) for item in items.values()]), 0)
    assert text is not None
    scored = made.text.measure(text)
    assert scored is not None
    text.union(lineage(text.non_tensor_batch["uid"].tolist()))
    rows = zip(text.non_tensor_batch["uid"], text.non_tensor_batch[ID], contexts(text), strict=True)
    drawings = [planned_drawing(items[uid], row, "", context) for uid, row, context in rows]
    images = made.painter.rollout(prompt_batch(drawings), 0)
    assert images is not None
    step = made.images.replay(made.backend.policy, images)
    assert step.log_prob is not None
    drawn = images.tensor("rollout_log_probs")
    return (
        (text.tensor("rollout_log_probs"), scored.tensor("old_log_probs")),
        (drawn, step.log_prob.detach().view_as(drawn)),
    )


def weights(rank_info: RankInfo, setup: Setup) -> dict[str, Tensor]:
    """As the model is loaded."""
    with torch.no_grad():
        return make_all(rank_info, setup).backend.full_state()
