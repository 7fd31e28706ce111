"""A reward server: the service behind HTTP, for scorers that need a separate machine or
environment."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

from rl_core.rewards.asking import Scored
from rl_core.rewards.base import Sample
from rl_core.rewards.protocol import AskedSample, ScoreRequest, answer_of, sample_of
from rl_core.rewards.service import RewardService, Scores

if TYPE_CHECKING:
    from fastapi import FastAPI


def build_app(service: RewardService) -> FastAPI:
    """Return the server's application: `POST /score` and `GET /health`; see `protocol.py` for the
    messages."""
    from fastapi import FastAPI, HTTPException, Response

    app = FastAPI(title="rl-train rewards")

    def score(request: ScoreRequest) -> Response:
        unknown = sorted(set(request.rewards or ()) - set(service.asked))
        if unknown:
            raise HTTPException(
                404, f"no rewards {unknown} here; there are {sorted(service.asked)}"
            )
        # NaN is not JSON by the letter, but the contract's word for a failed item.
        body = json.dumps(answer_of(_scores(service, request)), allow_nan=True)
        return Response(body, media_type="application/json")

    def health() -> dict[str, object]:
        return {"status": "ok", "rewards": service.weights}

    app.post("/score", response_class=Response)(score)
    app.get("/health")(health)
    return app


def _scores(service: RewardService, request: ScoreRequest) -> Scores:
    """Score a request; an image that cannot be read fails its own item."""
    read = [_read(sample) for sample in request.samples]
    good = [one for one in read if isinstance(one, Sample)]
    found = service.score_samples(good, request.rewards)
    by_key = {key: _with_unread(scored, read) for key, scored in found.by_key.items()}
    return Scores(by_key, found.weights)


def _read(asked: AskedSample) -> Sample | str:
    try:
        return sample_of(asked)
    except ValueError as error:
        return str(error)


def _with_unread(scored: Scored, read: list[Sample | str]) -> Scored:
    answers = iter(zip(scored.scores, scored.errors, strict=True))
    pairs = []
    for one in read:
        pairs.append(next(answers) if isinstance(one, Sample) else (math.nan, one))
    return Scored([score for score, _ in pairs], [error for _, error in pairs], scored.num_retried)
