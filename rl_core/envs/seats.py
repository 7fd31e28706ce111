"""Seats of an episode that several play: who answers the requests of each.

`seats: {player: policy, opponent: start}` in the options of an agent names them. A seat is the name
of a model at the agent's client; those that the policy plays are trained.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, TypeAlias

from pydantic import Discriminator, Field, Tag, field_validator

from schemas.sections.section import Section

POLICY = "policy"
"""Player that is trained."""
START = "start"
"""Player that is the model of `model.path`, before this run trained it."""
_NAME = re.compile(r"[A-Za-z_]\w*")


class ServedSeat(Section):
    """A model behind a server with OpenAI's chat API, which plays a seat and learns nothing."""

    url: str = Field(pattern=r"^https?://[^\s/]+")
    """Address of the server, `http://host:port/v1`."""
    model: str = Field(min_length=1)
    """Name of the model there."""
    key_variable: str = "OPENAI_API_KEY"
    """Environment variable with the server's key, if it wants one."""

    @field_validator("url", mode="after")
    @classmethod
    def _has_no_end(cls, url: str) -> str:
        return url.rstrip("/").removesuffix("/chat/completions")


def _kind(player: object) -> str:
    return "server" if isinstance(player, ServedSeat | Mapping) else "model"


Player: TypeAlias = Annotated[
    Annotated[str, Tag("model")] | Annotated[ServedSeat, Tag("server")],
    # So that a wrong player is said once, not once for each kind.
    Discriminator(_kind),
]
"""`policy`, `start`, a model as in `model.path`, a registered one, or one behind a server."""
Seats: TypeAlias = Mapping[str, Player]


def check_seats(seats: Seats, evaluation_seats: Seats) -> None:
    """Raises: ValueError when nobody would be trained, or more than one seat would be evaluated."""
    for name in seats:
        if not _NAME.fullmatch(name):
            raise ValueError(f"seats: {name!r} must be a name of letters, digits and _")
    if seats and POLICY not in seats.values():
        raise ValueError("seats: one of them must be `policy`, the model that is trained")
    if unknown := sorted(evaluation_seats.keys() - seats.keys()):
        raise ValueError(
            f"evaluation_seats: there is no seat {unknown[0]!r}; seats has "
            f"{', '.join(seats) or 'none'}"
        )
    evaluated = [name for name, who in {**seats, **evaluation_seats}.items() if who == POLICY]
    if seats and len(evaluated) != 1:
        raise ValueError(
            f"evaluation_seats: the policy plays {', '.join(evaluated) or 'no seat'} in "
            "evaluations; it must be one seat, so that a reward is its own, such as "
            f"evaluation_seats: {{{[*seats][-1]}: start}}"
        )


def with_models(
    options: Mapping[str, Mapping[str, object]], start: str
) -> dict[str, dict[str, object]]:
    """Return a recipe's `environments` with the path of a model where a seat is played by
    `start`."""
    return with_players(options, lambda _, player: start if player == START else player)


def with_players(
    options: Mapping[str, Mapping[str, object]], changed: Callable[[str, object], object]
) -> dict[str, dict[str, object]]:
    """Return a recipe's `environments` with other players.

    Args: changed: is given the place of a player, `game.seats.opponent`, and the player.
    """
    others = {name: dict(values) for name, values in options.items()}
    for name, values in others.items():
        for key in ("seats", "evaluation_seats"):
            seats = values.get(key)
            if isinstance(seats, Mapping):
                values[key] = {
                    seat: changed(f"{name}.{key}.{seat}", player) for seat, player in seats.items()
                }
    return others


def models_of(options: Mapping[str, Mapping[str, object]]) -> dict[str, str]:
    """Return the models that play a seat of a recipe's `environments`, by their places."""
    found: dict[str, str] = {}

    def noted(place: str, player: object) -> object:
        if isinstance(player, str) and player not in (POLICY, START):
            found[f"environments.{place}"] = player
        return player

    with_players(options, noted)
    return found
