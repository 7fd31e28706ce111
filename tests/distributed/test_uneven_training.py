"""Training on two ranks with shards of unequal size gives the numbers of one rank: metrics,
gradient norms, weights."""

from pathlib import Path

import pytest
import torch

from rl_core.algorithms import algorithms
from rl_core.data_proto import DataProto
from rl_core.distributed import DevicePool, placement, remote
from rl_core.models.bundle import ModelBundle
from rl_core.train.fsdp import FSDPBackend
from rl_core.train.result import TrainStepResult
from rl_core.train.stacks.token_stack import TrainStack
from schemas.recipe import FSDPConfig, LrSchedulerConfig, ModelConfig, OptimizerConfig

NUM_STEPS = 2


def batch(num_rows: int, seed: int) -> DataProto:
    """Rows with replies of different lengths."""
    generator = torch.Generator().manual_seed(seed)
    num_prompt, num_response = 4, 5
    lengths = torch.randint(1, num_response + 1, (num_rows,), generator=generator)
    mask = (torch.arange(num_response)[None] < lengths[:, None]).long()
    attention = torch.cat([torch.ones(num_rows, num_prompt).long(), mask], 1)
    return DataProto.from_dict(
        {
            "input_ids": torch.randint(
                3, 20, (num_rows, num_prompt + num_response), generator=generator
            ),
            "attention_mask": attention,
            "position_ids": (attention.cumsum(-1) - 1).clamp_min(0),
            "response_mask": mask,
            "rollout_log_probs": -torch.rand(num_rows, num_response, generator=generator) * mask,
            "advantages": torch.randn(num_rows, 1, generator=generator) * mask,
        }
    )


def train(
    model_dir: str, num_ranks: int, num_rows: int
) -> tuple[list[TrainStepResult], dict[str, torch.Tensor]]:
    algorithm_cls, config = algorithms.resolve({"name": "grpo"}, "algorithm")
    with placement(DevicePool(num_ranks, threads_per_device=1)) as block:
        backend = remote(
            FSDPBackend,
            remote(ModelBundle, model_dir, ModelConfig(path=model_dir)),
            FSDPConfig.model_validate({"param_dtype": "float32"}),
            OptimizerConfig(learning_rate=1e-3, eps=1e-4),
            LrSchedulerConfig(),
            None,
            total_steps=NUM_STEPS,
            seed=0,
            with_reference=False,
        )
        stack = remote(TrainStack, backend, remote(algorithm_cls, config), micro_batch_size=2)
    try:
        results = [stack.train(batch(num_rows, step)) for step in range(NUM_STEPS)]
        return results, backend.full_state()[0]
    finally:
        block.close()


@pytest.mark.usefixtures("ray_cluster")
def test_uneven_shards_over_two_ranks_give_the_figures_of_one(tiny_model_dir: Path) -> None:
    one, weights_one = train(str(tiny_model_dir), 1, 7)
    two, weights_two = train(str(tiny_model_dir), 2, 7)
    for of_one, of_two in zip(one, two, strict=True):
        figures_one, figures_two = of_one.to_floats(), of_two.to_floats()
        assert figures_two == pytest.approx(figures_one, rel=1e-5, abs=1e-6)
        assert figures_one["grad_norm"] > 0
        assert of_two.per_update[0].num_tokens == of_one.per_update[0].num_tokens
        # Exact counts: copies that fill up a shard weigh nothing.
        weights = {name: metric.weight for name, metric in of_one.metrics.items()}
        assert {name: metric.weight for name, metric in of_two.metrics.items()} == weights
    for name, value in weights_one.items():
        torch.testing.assert_close(weights_two[name], value, atol=1e-5, rtol=0)
