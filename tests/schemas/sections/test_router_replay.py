"""`rollout.router_replay` is refused where an engine does not say its experts, or training does not
replay them."""

from typing import Any

import pytest
from pydantic import ValidationError

from schemas.recipe import Recipe

BESIDE: dict[str, Any] = {"num_devices": 2, "rollout_devices": 1}


def recipe(**blocks: Any) -> Recipe:
    rollout = {"router_replay": True} | blocks.pop("rollout", {})
    data = {"train": ["rows.jsonl"], "eval": ["held_out.jsonl"]}
    given = {"name": "experts", "model": {"path": "model"}, "data": data}
    return Recipe.model_validate(given | {"rollout": rollout} | blocks)


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        (
            {"rollout": {"engine": "vllm"}, "placement": BESIDE},
            r"router_replay: rollout.engine: vllm does not say which experts vLLM chose; use",
        ),
        (
            {
                "rollout": {
                    "engine": "server",
                    "server": {"urls": ["http://127.0.0.1:1"], "folder": "/shared"},
                },
                "placement": BESIDE,
            },
            r"router_replay: rollout.engine: server does not say which experts vLLM chose; use",
        ),
        (
            {"placement": {"num_devices": 2, "sp_size": 2}},
            r"router_replay: not with placement.sp_size: a rank has a part of each sequence",
        ),
        (
            {"placement": {"num_devices": 2, "tp_size": 2}},
            r"router_replay: not with placement.tp_size: cut blocks",
        ),
        ({"fsdp": {"torch_compile": True}}, r"router_replay: not with fsdp.torch_compile: a comp"),
        ({"domain": "sft"}, r"router_replay: not in the domain sft; leave it out"),
        ({"domain": "diffusion"}, r"router_replay: not in the domain diffusion; leave it out"),
    ],
)
def test_what_cannot_be_replayed_is_refused_by_name(blocks: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        recipe(**blocks)


@pytest.mark.parametrize(
    "blocks",
    [
        {},
        {"rollout": {"engine": "dedicated"}, "placement": BESIDE},
        {"placement": {"num_devices": 2, "ep_size": 2, "max_tokens_per_micro_batch": 512}},
    ],
)
def test_the_projects_own_engines_and_expert_parallelism_replay(blocks: dict[str, Any]) -> None:
    assert recipe(**blocks).rollout.router_replay
