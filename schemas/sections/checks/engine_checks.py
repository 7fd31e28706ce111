"""Engines beside training: rollouts ahead that have nothing to run beside, or no way to get their
weights, and servers that do not fit the run."""

from schemas.sections.placement import PlacementConfig
from schemas.sections.rollout import EngineKind, RolloutConfig, SyncTransport, VllmConfig


def check_ahead(
    rollout: RolloutConfig, placement: PlacementConfig, steps_per_iteration: int
) -> None:
    """Check that `rollout.steps_ahead` can have its effect.

    Raises: ValueError naming the key that is in its way, and what would be right.
    """
    depth = rollout.steps_ahead
    if not depth:
        return
    if not placement.rollout_devices:
        raise ValueError(
            f"rollout.steps_ahead: {depth} samples while others train: set rollout.engine: "
            "dedicated (or vllm) and placement.rollout_devices, or steps_ahead: 0"
        )
    if steps_per_iteration <= depth:
        raise ValueError(
            f"rollout.steps_ahead: {depth} has no effect with training.steps_per_iteration: "
            f"{steps_per_iteration}, since no rollout is started ahead of a checkpoint; use "
            f"{depth + 1} or more"
        )
    if rollout.vllm.sleep:
        raise ValueError(
            f"rollout.vllm.sleep: with steps_ahead: {depth} the server samples meanwhile; leave "
            "out one of them"
        )
    if depth > 1 and rollout.sync.transport is SyncTransport.BROADCAST:
        raise ValueError(
            "rollout.sync.transport: broadcast makes the trainer wait until the engine takes part, "
            f"after {depth} rollouts; with steps_ahead of 2 or more use object_store"
        )


def check_server(rollout: RolloutConfig, placement: PlacementConfig) -> None:
    """Check that `rollout.server` fits the engine and its ranks. Raises: ValueError."""
    server = rollout.server
    if (rollout.engine is EngineKind.SERVER) != (server is not None):
        said = "leave it out" if server is not None else "set its urls and its folder"
        raise ValueError(f"rollout.server: with rollout.engine: {rollout.engine} {said}")
    if server is None:
        return
    if len(server.urls) != placement.rollout_devices:
        raise ValueError(
            f"rollout.server.urls: {len(server.urls)} servers for placement.rollout_devices = "
            f"{placement.rollout_devices}; each has one"
        )
    if not rollout.cuts_nothing:
        raise ValueError(
            "rollout.server: a server does not say which tokens it left out, which training has to "
            "know; leave out top_p, top_k and min_p, or use engine: vllm"
        )
    if rollout.vllm != VllmConfig():
        raise ValueError(
            "rollout.vllm: these settings are of servers that the run starts; leave them out, and "
            "start yours with them"
        )
