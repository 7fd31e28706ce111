"""Sampling of a request, from its parameters."""

from __future__ import annotations

import secrets

from pydantic import ValidationError

from rl_core.models.decoding.request import Sampling
from rl_core.models.decoding.stop_strings import StopStrings
from rl_core.serving.api_errors import ApiError
from rl_core.serving.engine import Asked
from rl_core.serving.schema import LARGEST_SEED, Asking
from rl_core.serving.served_model import KnownModel
from schemas.sections.sampling import SamplingConfig

LONGEST_REPLY = 4096
"""Most tokens of a reply of a model without a limit on its rows."""


def asked_for(
    request: Asking,
    prompt: list[int],
    model: KnownModel,
    *,
    limit: int | None,
    num_likely: int,
    max_replies: int,
    tags: frozenset[str] = frozenset(),
) -> Asked:
    """Return how a request wants its replies sampled.

    Args: limit: most tokens that it wants; None for as many as the model takes. tags: special
    tokens that stay in a reply's text. Raises: ApiError naming a parameter.
    """
    num_replies = request.n or 1
    if num_replies > max_replies:
        raise ApiError(
            f"n: {num_replies} is more than the {max_replies} replies sampled at once", "n"
        )
    room = room_after(prompt, model)
    temperature = 1.0 if request.temperature is None else request.temperature
    longest = min(limit or room, room)
    sampling = Sampling(
        longest,
        temperature,
        model.eos_ids,
        model.pad_id,
        choice=_choice(request, longest, temperature),
    )
    return Asked(
        sampling,
        room=room,
        seed=secrets.randbelow(LARGEST_SEED) if request.seed is None else request.seed,
        num_replies=num_replies,
        num_likely=num_likely,
        stop=StopStrings.of(request.stop_strings, tags),
    )


def room_after(prompt: list[int], model: KnownModel, *, at_least: int = 1) -> int:
    """Return the number of tokens that may follow a prompt. Raises: ApiError when that is fewer
    than `at_least`, or the model does not know a token."""
    if not prompt:
        raise ApiError("the prompt has no tokens", "prompt")
    if (highest := max(prompt)) >= model.num_words:
        raise ApiError(
            f"the prompt has the token {highest}; the model knows {model.num_words}", "prompt"
        )
    if model.longest is None:
        return LONGEST_REPLY
    room = model.longest.num_tokens - len(prompt)
    if room < at_least:
        raise ApiError(
            f"the prompt has {len(prompt)} tokens, but the model {model.longest.why}; shorten it",
            "messages",
            code="context_length_exceeded",
        )
    return room


def check_no_places(prompt: list[int], model: KnownModel, param: str) -> None:
    """Check that a prompt that came as tokens shows no pictures, which nothing would bring.

    Raises: ApiError.
    """
    if places := model.chat.places(prompt):
        raise ApiError(
            f"{param}: {places} of its tokens stand for pictures, which come with messages alone; "
            "send messages with parts of type image_url",
            param,
        )


def _choice(request: Asking, longest: int, temperature: float) -> SamplingConfig:
    least = request.min_tokens or 0
    if least > longest:
        raise ApiError(
            f"min_tokens: {least} is more than the {longest} that a reply may have", "min_tokens"
        )
    # Of a greedy reply these change nothing.
    cuts = {
        "top_p": request.top_p or 1.0,
        "top_k": request.top_k if (request.top_k or 0) > 0 else None,
        "min_p": request.min_p or 0.0,
    }
    try:
        return SamplingConfig(
            repetition_penalty=request.repetition_penalty or 1.0,
            min_new_tokens=least,
            **(cuts if temperature else {}),
        )
    except ValidationError as error:
        raise ApiError(str(error.errors()[0]["msg"]).removeprefix("Value error, "), "min_p") from (
            error
        )
