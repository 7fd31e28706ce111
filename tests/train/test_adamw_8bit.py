"""AdamW with means of 8 bits: bitsandbytes' rule, on any number of ranks, resumed bit for bit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from rl_core.errors import RecipeError
from rl_core.ranks.rank_info import RankInfo, TrainTopology
from rl_core.runs.recipes import load_recipe
from rl_core.train import needs
from rl_core.train.adamw_8bit import block_of
from rl_core.train.optimizer import add_moments, make_optimizer
from schemas.recipe import OptimizerConfig
from tests.train import parallel
from tests.train.jobs import Setup, make_both, train, train_steps
from tests.train.ranks import Ranks

EIGHT_BITS = {"name": "adamw_8bit"}
SETTINGS = {"learning_rate": 1e-3, "weight_decay": 0.1}


@pytest.fixture(scope="module")
def model_dir(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose matrices are large enough for means of 8 bits."""
    folder = tmp_path_factory.mktemp("wider-model")
    AutoTokenizer.from_pretrained(tiny_model_dir).save_pretrained(folder)
    config = LlamaConfig.from_pretrained(tiny_model_dir)
    config.hidden_size, config.intermediate_size, config.head_dim = 64, 128, 16
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def test_a_step_is_that_of_bitsandbytes_where_its_blocks_are_ours() -> None:
    from bitsandbytes.optim import AdamW8bit

    torch.manual_seed(0)
    ours = [nn.Parameter(torch.randn(40, 512)), nn.Parameter(torch.randn(300))]
    theirs = [nn.Parameter(one.detach().clone()) for one in ours]
    exact = [nn.Parameter(one.detach().clone()) for one in ours]
    optimizers = [
        make_optimizer(ours, OptimizerConfig.model_validate({**EIGHT_BITS, **SETTINGS})),
        AdamW8bit(theirs, lr=1e-3, weight_decay=0.1),
        make_optimizer(exact, OptimizerConfig.model_validate(SETTINGS)),
    ]
    for _ in range(5):
        for one, other, third in zip(ours, theirs, exact, strict=True):
            one.grad = torch.randn_like(one)
            other.grad, third.grad = one.grad.clone(), one.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    # A value between two codes may be rounded to either, by the last bit of its computation.
    far = (ours[0] - theirs[0]).abs().detach()
    assert float(far.mean()) < 1e-6 and float(far.max()) < 1e-3
    assert torch.equal(ours[1], exact[1]), "a vector's means are not quantized"
    from_exact = float((ours[0] - exact[0]).abs().max().detach())
    assert 1e-6 < from_exact < 1e-3, "a fifth of five updates of at most 1e-3"


def test_the_means_take_a_byte_and_the_scales_next_to_nothing() -> None:
    matrix = nn.Parameter(torch.zeros(64, 576))
    optimizer = make_optimizer([matrix], OptimizerConfig.model_validate(EIGHT_BITS))
    add_moments(optimizer)
    held = sum(one.nbytes for key, one in optimizer.state[matrix].items() if key != "step")
    assert held == 2 * (matrix.numel() + 4 * matrix.numel() // 64)


@pytest.mark.parametrize(
    ("shape", "block"), [((64, 576), 64), ((9, 4096), 256), ((8, 64), None), ((64, 992), None)]
)
def test_blocks_end_where_rows_end(shape: tuple[int, ...], block: int | None) -> None:
    assert block_of(torch.zeros(shape)) == block


@pytest.mark.slow
def test_two_ranks_train_the_weights_of_one_and_of_adamw_nearly(
    ranks: Ranks, model_dir: Path
) -> None:
    setup = Setup(str(model_dir), optimizer=EIGHT_BITS)
    one: dict[str, Tensor] = ranks.run(1, train, setup, [0, 1, 2])[0][0]
    two: dict[str, Tensor] = ranks.run(2, train, setup, [0, 1, 2])[0][0]
    columns: dict[str, Tensor] = ranks.run(
        2, parallel.train, TrainTopology(tp_size=2), setup, [0, 1, 2]
    )[0][0]
    exact: dict[str, Tensor] = ranks.run(1, train, Setup(str(model_dir)), [0, 1, 2])[0][0]
    for name, value in one.items():
        # A gradient's rounding may move a code to its neighbour.
        torch.testing.assert_close(two[name], value, atol=1e-4, rtol=0, msg=name)
        # Where columns are sharded, blocks are shorter.
        torch.testing.assert_close(columns[name], value, atol=1e-3, rtol=0, msg=name)
        torch.testing.assert_close(exact[name], value, atol=1e-3, rtol=0, msg=name)
    assert any(not torch.equal(exact[name], value) for name, value in one.items())


def first_half(rank_info: RankInfo, setup: Setup, folder: str) -> dict[str, Any]:
    """Train, save, and train on."""
    backend, stack = make_both(rank_info, setup)
    train_steps(stack, rank_info, [0, 1])
    backend.save(folder)
    backend.offload()
    backend.onload()
    train_steps(stack, rank_info, [2, 3])
    return backend.full_state()


def second_half(rank_info: RankInfo, setup: Setup, folder: str) -> dict[str, Any]:
    backend, stack = make_both(rank_info, setup)
    backend.load(folder)
    train_steps(stack, rank_info, [2, 3])
    return backend.full_state()


def test_a_run_resumes_bit_for_bit_and_on_another_number_of_ranks(
    ranks: Ranks, model_dir: Path, tmp_path: Path
) -> None:
    setup = Setup(str(model_dir), optimizer=EIGHT_BITS)
    whole = ranks.run(2, first_half, setup, str(tmp_path))[0]
    resumed = ranks.run(2, second_half, setup, str(tmp_path))[0]
    alone = ranks.run(1, second_half, setup, str(tmp_path))[0]
    for name, value in whole.items():
        assert torch.equal(resumed[name], value), name
        torch.testing.assert_close(alone[name], value, atol=1e-4, rtol=0, msg=name)


def test_without_the_package_a_recipe_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "find_spec", lambda name: None)
    with pytest.raises(RecipeError, match=r"adamw_8bit needs bitsandbytes.*pip install"):
        load_recipe("smoke/text", ["optimizer.name=adamw_8bit"])
