"""Two experts under FSDP: ranks whose rows need different ones neither wait for each other forever
nor learn amiss."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rl_core.models.diffusion.experts import Experts
from rl_core.ranks.rank_info import RankInfo
from tests.models.tiny_videos import wan_transformer

TIMESTEPS = (990.0, 900.0, 500.0, 300.0)
BOUNDARY = 875.0


def learn(rank_info: RankInfo) -> dict[str, Tensor]:
    """Predictions of this rank's rows, sampled and trained on, and the gradients of all rows."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    experts: Any = Experts(wan_transformer(), wan_transformer(), BOUNDARY)
    mesh = init_device_mesh("cpu", (rank_info.world_size,))
    for block in (*experts.transformer.blocks, *experts.transformer_2.blocks):
        fully_shard(block, mesh=mesh)
    fully_shard(experts, mesh=mesh)
    generator = torch.Generator().manual_seed(1)
    inputs = {
        "hidden_states": torch.randn(4, 4, 2, 4, 4, generator=generator),
        "encoder_hidden_states": torch.randn(4, 8, 16, generator=generator),
        "timestep": torch.tensor(TIMESTEPS),
    }
    mine = {
        name: value.chunk(rank_info.world_size)[rank_info.rank] for name, value in inputs.items()
    }
    with torch.no_grad():
        sampled = experts(**mine)[0]
    predicted = experts(**mine)[0]
    predicted.square().mean().backward()
    gradients = {name: value.grad.full_tensor() for name, value in experts.named_parameters()}
    return {"sampled": sampled, "predicted": predicted.detach(), **gradients}


@pytest.mark.slow
def test_ranks_that_need_different_experts_learn_like_one(ranks: Any):
    (alone,) = ranks.run(1, learn)
    first, second = ranks.run(2, learn)
    for name in ("sampled", "predicted"):
        torch.testing.assert_close(
            torch.cat([first[name], second[name]]), alone[name], atol=1e-5, rtol=0
        )
    gradients = [name for name in alone if name not in ("sampled", "predicted")]
    assert {name.split(".")[0] for name in gradients} == {"transformer", "transformer_2"}
    for name in gradients:
        torch.testing.assert_close(first[name], alone[name], atol=1e-5, rtol=1e-4)
    assert all(
        alone[f"{expert}.proj_out.weight"].abs().max() > 0
        for expert in ("transformer", "transformer_2")
    )
