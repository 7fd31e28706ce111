"""GRPO (arXiv 2402.03300) in one file and one process: no Ray, no Prefect, no checkpoints.

    python -m examples.one_loop --steps 8

A step is four lines of `OneLoop.step`: sample a group of replies to each prompt, reward them,
compare each reply with its siblings, and move the policy towards the better ones. The parts are
those of an `rl-train` run; `rl_core/trainers/base.py` is the same loop for several processes, kinds
of model and algorithms. A test checks that both end with bit-identical weights.

Axes: B rows (replies; those to one prompt are adjacent), P prompt tokens, T reply tokens.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence

import torch
import torch.distributed as dist

from rl_core.algorithms import algorithms
from rl_core.algorithms.metrics import to_floats
from rl_core.algorithms.terms import Denominators
from rl_core.data import PromptDataset
from rl_core.data.order.source_of_recipe import training_source
from rl_core.data.prepare.items import Item
from rl_core.data.read.recipe_files import resolve_sources
from rl_core.data_proto import DataProto
from rl_core.errors import RewardError
from rl_core.kernels import keep_freed_memory, widen_products
from rl_core.models.bundle import TextBundle
from rl_core.models.chat.tokenizer import load_tokenizer
from rl_core.models.locate import locate
from rl_core.ranks.rank_info import RankInfo
from rl_core.rollout.engine import RolloutEngine
from rl_core.runs.recipes import load_recipe
from rl_core.runtime.home import Home
from rl_core.train.fsdp import FSDPBackend
from rl_core.train.micro_batches import by_row_count, take
from schemas.recipe import Recipe

SMOLLM2 = "embedded:smollm2-135m-instruct"
"""SmolLM2-135M-Instruct, whose weights are part of the installation."""


class OneLoop:
    """GRPO training of a language model on its environments' rewards.

    Args: recipe: of the domain `text` with the algorithm `grpo` (no KL), one optimizer step per
    rollout and a `placement.micro_batch_size`. source: path of the model, as `locate` returns it.
    items: the prompts. rank_info: of this process, which is alone in its process group.
    """

    def __init__(
        self,
        recipe: Recipe,
        source: str,
        items: Sequence[Item],
        rank_info: RankInfo,
    ) -> None:
        self.recipe = recipe
        training = recipe.training
        # The seed decides the order; every prompt is used once before any is used again.
        num_prompts = training.prompts_per_step
        self.source = training_source(items, num_prompts, recipe.seed, recipe.data.blend)
        algorithm_cls, config = algorithms.resolve(recipe.algorithm, "algorithm")
        self.algorithm = algorithm_cls(config)
        # The policy, its optimizer and its learning rate schedule; LoRA adapters if the recipe has
        # them.
        self.backend = FSDPBackend(
            TextBundle(source, recipe.model),
            recipe.fsdp,
            recipe.optimizer,
            recipe.scheduler,
            recipe.lora,
            total_steps=training.num_iterations * training.steps_per_iteration,
            seed=recipe.seed,
            with_reference=False,
            rank_info=rank_info,
        )
        # A forward pass computes the prompt of siblings once, if the model allows it.
        self.share_prompts = self.backend.enable_prompt_sharing()
        # Samples with the module that is trained.
        self.engine = RolloutEngine(
            self.backend,
            recipe.rollout,
            recipe.environments,
            recipe.model.chat_template_kwargs,
            recipe.seed,
        )
        self.num_steps = 0

    def step(self) -> dict[str, float]:
        """Sample, reward, compare and train. Returns: metrics."""
        prompts = DataProto.from_dict(non_tensors={"item": list(self.source.next_batch())})
        rollout = self.sample(prompts)
        rewarded = self.add_advantages(rollout)
        trained = self.train(rollout)
        self.num_steps += 1
        return {**rewarded, **trained}

    def sample(self, prompts: DataProto) -> DataProto:
        """Sample replies to each prompt, with their environment's rewards.

        Returns: rows with `input_ids, attention_mask, position_ids` [B, P+T], `response_mask` [B,
        T] (1 for tokens that the policy chose), `rewards` [B], and `failed` [B], True if an
        environment could not judge the reply.
        """
        rollout = self.engine.rollout(prompts, self.num_steps)
        assert rollout is not None, "this rank speaks for itself"
        return rollout

    def add_advantages(self, rollout: DataProto) -> dict[str, float]:
        """Put `advantages` [B, T] into the rollout: the reward minus its group's mean, divided by
        the group's standard deviation, at every token of the reply.

        Returns: metrics. Raises: RewardError when no row has a reward.
        """
        mask_BT, good_B = rollout.tensor("response_mask"), ~rollout.tensor("failed")
        if not bool(good_B.any()):
            raise RewardError(f"no row has a reward; first: {rollout.non_tensor_batch['error'][0]}")
        groups_B = torch.arange(len(rollout)) // self.recipe.rollout.samples_per_prompt
        advantages_BT = torch.zeros(mask_BT.shape)
        rewards_B = rollout.tensor("rewards")
        rows = rewards_B[good_B], groups_B[good_B], mask_BT[good_B]
        advantages_BT[good_B], metrics = self.algorithm.advantages(*rows)
        rollout.union(DataProto.from_dict({"advantages": advantages_BT}))
        return to_floats(metrics)

    def train(self, rollout: DataProto) -> dict[str, float]:
        """Take one optimizer step over all rows, in passes of `micro_batch_size` rows. Returns:
        metrics."""
        rollout = rollout.to(self.backend.device)
        acts_BT = rollout.tensor("response_mask") != 0
        num_tokens, num_rows = float(acts_BT.sum()), float(acts_BT.any(1).sum())
        # The loss of a pass is a share of the whole batch's loss, so the size of passes does not
        # change the gradient.
        denominators = Denominators(num_tokens, num_rows, self.recipe.rollout.max_new_tokens)
        # Replies as good as all their siblings have no gradient; they only count in the
        # denominators.
        taught_B = acts_BT.any(1) & (rollout.tensor("advantages") != 0).any(1)
        rows = taught_B.nonzero()[:, 0].tolist()
        size = self.recipe.placement.micro_batch_size or len(rollout)
        # If no row has a gradient, there is one empty pass: the optimizer's momentum still moves
        # the weights.
        passes = by_row_count(rows, size) or [[]]
        total = 0.0
        for number, chosen in enumerate(passes, start=1):
            loss = self.loss(take(rollout, chosen), denominators)
            self.backend.backward(loss, last=number == len(passes))
            total += float(loss.detach())
        stepped = self.backend.optimizer_step(self.recipe.training.max_grad_norm)
        return {"loss": total, "grad_norm": stepped["grad_norm"], "lr": stepped["lr"]}

    def loss(self, micro: DataProto, denominators: Denominators) -> torch.Tensor:
        """Return the share of some rows in the loss: PPO's clipped objective, token by token."""
        mask_BT = micro.tensor("response_mask")
        log_probs_BT, _ = self.backend.policy(
            micro.tensor("input_ids"),
            micro.tensor("attention_mask"),
            micro.tensor("position_ids"),
            mask_BT,
            temperature=self.recipe.rollout.temperature,
            share_prompts=self.share_prompts,
        )
        loss, _ = self.algorithm.loss(
            log_probs_BT=log_probs_BT,
            # With one optimizer step per rollout, the sampling policy is the trained one: all
            # ratios are 1, and their gradient is that of the log-probabilities.
            old_log_probs_BT=log_probs_BT.detach(),
            advantages_BT=micro.tensor("advantages"),
            mask_BT=mask_BT,
            ref_log_probs_BT=None,
            entropy_BT=None,
            denominators=denominators,
        )
        return loss


def recipe_of(model: str, num_steps: int, num_prompts: int, num_samples: int) -> Recipe:
    """Return the recipe `text`, with passes of a fixed number of rows instead of tokens."""
    return load_recipe(
        "text",
        [
            f"model.path={model}",
            "training.num_iterations=1",
            f"training.steps_per_iteration={num_steps}",
            f"training.prompts_per_step={num_prompts}",
            f"rollout.samples_per_prompt={num_samples}",
            "placement.micro_batch_size=32",
        ],
    )


def alone(recipe: Recipe) -> RankInfo:
    """Set this process up as a worker that is alone in its process group."""
    keep_freed_memory()
    widen_products()
    info = RankInfo(0, 1, "cpu", recipe.placement.threads_per_device or os.cpu_count() or 1)
    torch.set_num_threads(info.num_threads)
    store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    dist.init_process_group(info.collective_backend, store=store, rank=0, world_size=1)
    return info


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="GRPO on SmolLM2, in one file and one process.")
    parser.add_argument("--model", default=SMOLLM2, help="a folder, or as in a recipe's model.path")
    parser.add_argument("--steps", type=int, default=8, help="optimiser steps")
    parser.add_argument("--prompts", type=int, default=8, help="prompts of a step")
    parser.add_argument("--samples", type=int, default=8, help="replies to each prompt")
    given = parser.parse_args(arguments)
    recipe = recipe_of(given.model, given.steps, given.prompts, given.samples)
    home = Home.default()
    source = locate(recipe.model.path, home.models)
    files = resolve_sources(recipe.data.train, home.data, recipe.data.column_map)
    items = PromptDataset(files, load_tokenizer(source), recipe.data.max_prompt_length).items
    loop = OneLoop(recipe, source, items, alone(recipe))
    for number in range(1, given.steps + 1):
        start = time.perf_counter()
        metrics = {**loop.step(), "seconds": time.perf_counter() - start}
        said = (f"{name} {value:.4g}" for name, value in metrics.items())
        print(f"step {number}", *said, sep="  ", flush=True)


if __name__ == "__main__":
    main()
