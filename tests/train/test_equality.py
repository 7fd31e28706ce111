"""Training gives the same numbers on plain torch, one rank and two ranks, and for every micro-batch
size."""

import pytest
import torch

from rl_core.algorithms import algorithms
from rl_core.algorithms.terms import Denominators
from rl_core.data_proto import DataProto
from rl_core.distributed import DevicePool, placement, remote
from rl_core.models.adapters.lora import inject_lora
from rl_core.models.bundle import ModelBundle
from rl_core.models.causal_lm import load_policy
from rl_core.train.fsdp import FSDPBackend
from rl_core.train.optimizer import make_optimizer
from rl_core.train.stacks.token_stack import TrainStack
from schemas.recipe import FSDPConfig, LoraConfig, LrSchedulerConfig, ModelConfig, OptimizerConfig

NUM_STEPS = 2
# Adam divides by the gradient's own size; a larger eps keeps rounding noise in near-zero gradients
# small.
OPTIMIZER = OptimizerConfig(learning_rate=1e-3, eps=1e-4)
LORA = LoraConfig(rank=4, alpha=8)


def batch(seed: int = 0) -> DataProto:
    generator = torch.Generator().manual_seed(seed)
    num_rows, num_prompt, num_response = 8, 6, 5
    lengths = torch.randint(1, num_response + 1, (num_rows,), generator=generator)
    prompt_lengths = torch.randint(2, num_prompt + 1, (num_rows,), generator=generator)
    mask = (torch.arange(num_response)[None] < lengths[:, None]).long()
    prompt_mask = (torch.arange(num_prompt)[None] >= num_prompt - prompt_lengths[:, None]).long()
    attention = torch.cat([prompt_mask, mask], 1)
    return DataProto.from_dict(
        {
            "input_ids": torch.randint(
                3, 20, (num_rows, num_prompt + num_response), generator=generator
            ),
            "attention_mask": attention,
            "position_ids": (attention.cumsum(-1) - 1).clamp_min(0),
            "response_mask": mask,
            "rollout_log_probs": torch.full((num_rows, num_response), -3.0) * mask,
            "advantages": torch.randn(num_rows, 1, generator=generator) * mask,
        }
    )


def train_with_fsdp(
    model_dir: str,
    num_ranks: int,
    micro_batch_size: int,
    lora: LoraConfig | None,
    num_steps: int = NUM_STEPS,
) -> tuple[dict[str, torch.Tensor], list[float]]:
    algorithm_cls, config = algorithms.resolve({"name": "grpo"}, "algorithm")
    pool = DevicePool(num_ranks, threads_per_device=1)
    with placement(pool) as group:
        bundle = remote(ModelBundle, model_dir, ModelConfig(path=model_dir))
        backend = remote(
            FSDPBackend,
            bundle,
            FSDPConfig.model_validate({"param_dtype": "float32"}),
            OPTIMIZER,
            LrSchedulerConfig(),
            lora,
            total_steps=NUM_STEPS,
            seed=0,
            with_reference=False,
        )
        stack = remote(
            TrainStack, backend, remote(algorithm_cls, config), micro_batch_size=micro_batch_size
        )
    norms = []
    for step in range(num_steps):
        norms.append(stack.train(batch(step)).grad_norm)
    state = backend.full_state()[0]
    group.close()
    return state, norms


def train_with_plain_torch(
    model_dir: str, lora: LoraConfig | None
) -> tuple[dict[str, torch.Tensor], list[float]]:
    algorithm_cls, config = algorithms.resolve({"name": "grpo"}, "algorithm")
    algorithm = algorithm_cls(config)
    policy = load_policy(model_dir, ModelConfig(path=model_dir))
    if lora is not None:
        inject_lora(policy, lora, seed=0)
    optimizer = make_optimizer(policy.parameters(), OPTIMIZER)
    norms = []
    for step in range(NUM_STEPS):
        rows = batch(step)
        mask = rows.tensor("response_mask")
        log_probs, _ = policy(
            rows.tensor("input_ids"),
            rows.tensor("attention_mask"),
            rows.tensor("position_ids"),
            mask,
        )
        denominators = Denominators(float(mask.sum()), float(len(rows)), mask.shape[1])
        loss, _ = algorithm.loss(
            log_probs, log_probs.detach(), rows.tensor("advantages"), mask, None, None, denominators
        )
        optimizer.zero_grad()
        loss.backward()
        trainable = [parameter for parameter in policy.parameters() if parameter.requires_grad]
        norms.append(float(torch.nn.utils.clip_grad_norm_(trainable, 1.0)))
        optimizer.step()
    trained = {
        name: value.detach() for name, value in policy.named_parameters() if value.requires_grad
    }
    return trained, norms


def assert_same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> None:
    shared = one.keys() & two.keys()
    assert len(shared) >= min(len(one), len(two)) > 0
    for name in shared:
        torch.testing.assert_close(
            one[name], two[name], atol=1e-5, rtol=0, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
@pytest.mark.usefixtures("ray_cluster")
def test_two_ranks_equal_one_rank_equal_plain_torch(
    tiny_model_dir: str, lora: LoraConfig | None
) -> None:
    plain, plain_norms = train_with_plain_torch(str(tiny_model_dir), lora)
    one, one_norms = train_with_fsdp(str(tiny_model_dir), 1, 8, lora)
    two, two_norms = train_with_fsdp(str(tiny_model_dir), 2, 4, lora)
    start = load_policy(str(tiny_model_dir), ModelConfig(path=str(tiny_model_dir)))
    assert lora is not None or any(
        not torch.allclose(value, one[name], atol=1e-4)
        for name, value in start.state_dict().items()
        if name in one
    ), "nothing was trained"
    assert one_norms == pytest.approx(plain_norms, abs=1e-5)
    assert two_norms == pytest.approx(plain_norms, abs=1e-5)
    assert_same(plain, one)
    assert_same(one, two)


@pytest.mark.usefixtures("ray_cluster")
def test_the_gradient_does_not_depend_on_micro_batch_size(tiny_model_dir: str) -> None:
    norms = [
        train_with_fsdp(str(tiny_model_dir), 1, size, None, num_steps=1)[1][0] for size in (2, 3, 8)
    ]
    assert norms[0] > 0
    assert norms == pytest.approx([norms[0]] * 3, rel=1e-5)
