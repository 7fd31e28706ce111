"""What the tests of servers of somebody else build: a text job whose engine asks one, and can be
asked itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from rl_core.distributed.servers.server_engine import ServerEngine
from rl_core.trainers.domains.text import TOKENS, TRACK, TextTrainer, wire_replies
from rl_core.trainers.track import Wiring
from rl_core.trainers.wiring import place_policy
from schemas.recipe import Recipe
from schemas.sections.rollout import EngineKind
from tests.rollout.built import built, engine_of
from tests.rollout.test_dedicated import ITEMS, NUM_PROMPTS, NUM_SIBLINGS
from tests.rollout.vllm_parts import CONTEXT, TOLERANCE, AskedEngine, agree, recipe

SPARE = 2
"""Tokens of the context that an SGLang server keeps for itself."""


class AskedServerEngine(AskedEngine, ServerEngine):
    """Answers requests outside a rollout."""


class ServerTrainer(TextTrainer):
    """A text job with that engine."""

    def wire(self) -> Wiring:
        kind = replace(TOKENS, own_engines={EngineKind.SERVER: AskedServerEngine})
        return wire_replies(
            TRACK, self.recipe, *place_policy(kind, self.pool, self.recipe, self.source_model)
        )


def server_recipe(
    folder: Path,
    server: dict[str, Any],
    *,
    changes: dict[str, Any] | None = None,
    **sampling: Any,
) -> Recipe:
    """A job of one rank that trains and one that asks a server. Args: changes: of the recipe's
    blocks besides `rollout`."""
    rollout = {
        "engine": "server",
        "server": server,
        "samples_per_prompt": NUM_SIBLINGS,
        "max_new_tokens": 8,
        "max_context_length": CONTEXT,
        "sync": {"dtype": "float32", "bucket_bytes": 20_000},
    } | sampling
    placement = {"num_devices": 2, "rollout_devices": 1, "threads_per_device": 1}
    blocks = changes or {}
    return recipe(folder, rollout=rollout, placement=placement | {"micro_batch_size": 8}, **blocks)


def check_steps(settings: Recipe, num_steps: int) -> dict[str, torch.Tensor]:
    """Check that a server samples with the weights of the step before. Returns: the last
    weights."""
    with built(ServerTrainer(settings, settings.model.path, ITEMS)) as trainer:
        trainer.sync_weights()
        said = [agree(trainer)]
        for _ in range(num_steps):
            metrics, rollout = trainer.step()
            assert 0.0 <= metrics["delta_log_prob_max"] < TOLERANCE
            assert len(rollout) == NUM_PROMPTS * NUM_SIBLINGS
            backend = trainer.backends()["policy"]
            assert engine_of(trainer).weight_version() == backend.weight_version()
            said.append(agree(trainer))
        assert said[0] != said[-1]
        return trainer.backends()["policy"].full_state()[0]
