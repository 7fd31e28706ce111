"""The demo's web application: `GET /`, and `POST /ask/<number>` for each of the two models."""

from __future__ import annotations

import base64
import time
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rl_core.demo.contestants import MAX_TEMPERATURE, Demo
from rl_core.demo.questions import Question
from rl_core.errors import UserError
from rl_core.reporting.pages import render

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

MAX_MESSAGES, MAX_CHARACTERS = 100, 20_000
MAX_BODY_BYTES = 2**20


class Message(BaseModel):
    """A turn of the conversation."""

    model_config = ConfigDict(extra="forbid")

    role: Literal["system", "user", "assistant"]
    content: Annotated[str, Field(min_length=1, max_length=MAX_CHARACTERS)]


class Asked(BaseModel):
    """Request of the page."""

    model_config = ConfigDict(extra="forbid")

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    seed: int = Field(default=0, ge=0, lt=2**31)
    temperature: float = Field(default=0.0, ge=0.0, le=MAX_TEMPERATURE)


def build_app(demo: Demo) -> Starlette:
    """Return the application for two loaded models."""
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.responses import HTMLResponse, JSONResponse
    from starlette.routing import Route

    names = [one.name for one in demo.contestants]
    page = render(
        "demo.html", task=demo.page.value, names=names, temperature=f"{demo.temperature:g}"
    )

    async def show(_: Request) -> Response:
        return HTMLResponse(page)

    async def ask(request: Request) -> Response:
        number = request.path_params["number"]
        if number >= len(demo.contestants):
            return JSONResponse(
                {"error": f"there are models 0 to {len(demo.contestants) - 1}"}, 404
            )
        body = await request.body()
        if len(body) > MAX_BODY_BYTES:
            return JSONResponse({"error": f"more than {MAX_BODY_BYTES} bytes"}, 413)
        try:
            asked = Asked.model_validate_json(body)
        except ValidationError as error:
            return JSONResponse({"error": str(error)}, 422)
        messages = [message.model_dump() for message in asked.messages]
        question = Question(messages, asked.seed, asked.temperature, demo.max_new_tokens)
        began = time.perf_counter()
        try:
            answer = await run_in_threadpool(demo.contestants[number].ask, question)
        except UserError as error:
            return JSONResponse({"error": str(error)}, 422)
        said = {
            "text": answer.text,
            "image": base64.b64encode(answer.image).decode(),
            "is_cut": answer.is_cut,
        }
        return JSONResponse(said | {"seconds": time.perf_counter() - began})

    return Starlette(routes=[Route("/", show), Route("/ask/{number:int}", ask, methods=["POST"])])
