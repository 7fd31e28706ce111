"""Episodes of several seats: the endpoint that finds a seat by the model's name, and the reward of
each seat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from rl_core.envs.seats import Seats
from rl_core.rollout.agents.endpoint import EpisodeEndpoint
from rl_core.rollout.agents.processes import Ended
from rl_core.serving.api_errors import NOT_FOUND, ApiError


@dataclass(frozen=True)
class SeatedEndpoint(EpisodeEndpoint):
    """Endpoint of an episode whose seats are models."""

    seats: Mapping[str, EpisodeEndpoint]

    @classmethod
    def of(cls, seats: Mapping[str, EpisodeEndpoint]) -> SeatedEndpoint:
        """Return the endpoint of these seats, which lists the first."""
        first = next(iter(seats.values()))
        shared = {one.name: getattr(first, one.name) for one in fields(EpisodeEndpoint)}
        return cls(**shared, seats=seats)

    def of_model(self, name: str) -> EpisodeEndpoint:
        """Return a seat's endpoint. Raises: ApiError when there is no such seat."""
        found = self.seats.get(name)
        if found is None:
            raise ApiError(
                f"model: there is no seat {name!r:.200}; the recipe's seats are "
                f"{', '.join(self.seats)}",
                "model",
                status=NOT_FOUND,
                code="model_not_found",
            )
        return found


def ends_of_seats(ended: Ended, seats: Seats, trained: list[str]) -> dict[str, Ended] | str:
    """Return the end of an episode as each trained seat sees it, or what is wrong with it.

    Args: seats: none if the recipe names none; the policy's only seat then has no name.
    """
    if not seats:
        if ended.seats is not None:
            return (
                f"the agent returned rewards of the seats {', '.join(ended.seats)}, and "
                "environments.<name>.seats names none"
            )
        return dict.fromkeys(trained, ended)
    if ended.rewards is not None or ended.messages is not None:
        what = "messages" if ended.rewards is None else "a reward for each request"
        return f"the agent returned {what}; with seats it must be a number, or one for each seat"
    if ended.seats is None:
        return dict.fromkeys(trained, ended)
    if unknown := sorted(ended.seats.keys() - seats.keys()):
        return (
            f"the agent returned a reward of {unknown[0]!r}; the recipe's seats are "
            f"{', '.join(seats)}"
        )
    if missing := [name for name in trained if name not in ended.seats]:
        return f"the agent returned no reward of the seat {missing[0]!r}, which the policy plays"
    return {name: replace(ended, reward=ended.seats[name], seats=None) for name in trained}
