"""Contract of a weight sync: it brings an engine with its own model up to date."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from rl_core.ranks.dispatch import Collect, distributed

if TYPE_CHECKING:
    from rl_core.parts.backend import Backend
    from schemas.sections.rollout import SyncConfig


class Sync(Protocol):
    """Bridge between the backend, its sibling, and an engine in another placement block.

    `rl_core.distributed.weight_sync.WeightSync` is the usual one.
    """

    def __init__(self, *, backend: Backend, rollout: object, config: SyncConfig) -> None: ...

    @distributed(collect=Collect.RANK_ZERO)
    def sync(self, *, evaluation: bool) -> object:
        """Bring the engine up to date; send nothing if it is. Collective.

        Returns: a `SyncReport`, whose `version` is that of the weights that the engine then holds.
        """
        ...
