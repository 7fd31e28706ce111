"""The endpoint's web application."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException

from rl_core.errors import UserError
from rl_core.serving.api_errors import (
    FAILED,
    TOO_MANY,
    UNAUTHORIZED,
    ApiError,
    ErrorAnswer,
    from_validation,
)
from rl_core.serving.chat import ChatAnswer
from rl_core.serving.completions import CompletionAnswer
from rl_core.serving.endpoint import Endpoint
from rl_core.serving.engine import EngineFailed, EngineFull
from rl_core.serving.schema import ChatRequest, CompletionRequest

GONE = 499
"""Status of an answer that nobody waits for, as nginx has it."""
NOT_AGAIN = {"x-should-retry": "false"}
"""Header by which OpenAI's client knows that another attempt fails as well."""
EndpointOf: TypeAlias = Callable[[str], Endpoint | None]
"""Finds the endpoint of an API key; None if nobody has that key."""
RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer} for status in (400, 401, 403, 404, 429, 500)
}

STREAMS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The answer; with `stream: true` its server-sent events.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}


def build_app(endpoint: Endpoint, api_key: str | None = None) -> FastAPI:
    """Return the application. Args: api_key: the key that requests have to bring; None for none."""

    def of_key(given: str) -> Endpoint | None:
        right = api_key is None or secrets.compare_digest(given.encode(), api_key.encode())
        return endpoint if right else None

    app = build_app_by_key(of_key, endpoint.engine.close)
    _describe(app, endpoint.name)
    return app


def build_app_by_key(endpoint_of: EndpointOf, close: Callable[[], None] | None = None) -> FastAPI:
    """Return an application in which a request's API key chooses the endpoint.

    Args: endpoint_of: is given an empty key for a request without one. close: called at the end.
    """

    @asynccontextmanager
    async def running(_: FastAPI) -> AsyncIterator[None]:
        yield
        if close is not None:
            await asyncio.to_thread(close)

    async def find_endpoint(request: Request) -> Endpoint:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        found = endpoint_of(given.strip() if scheme.lower() == "bearer" else "")
        if found is None:
            raise ApiError(
                "the API key is missing or wrong: Authorization: Bearer KEY",
                status=UNAUTHORIZED,
                code="invalid_api_key",
            )
        return found

    found_endpoint = Depends(find_endpoint)
    app = FastAPI(
        title="rl-train serve",
        lifespan=running,
        docs_url=None,
        redoc_url=None,
        dependencies=[found_endpoint],
        responses=RESPONSES,
    )
    _tell_errors(app)

    @app.post("/v1/chat/completions", responses=STREAMS)
    async def chat(
        request: ChatRequest, http: Request, endpoint: Endpoint = found_endpoint
    ) -> Response:
        answer = await ChatAnswer.of(request, endpoint.of_model(request.model))
        return await _answered(answer, bool(request.stream), http)

    @app.post("/v1/completions", responses=STREAMS)
    async def completions(
        request: CompletionRequest, http: Request, endpoint: Endpoint = found_endpoint
    ) -> Response:
        return await _answered(
            CompletionAnswer(request, endpoint.of_model(request.model)), bool(request.stream), http
        )

    @app.get("/v1/models")
    async def models(endpoint: Endpoint = found_endpoint) -> dict[str, Any]:
        return {"object": "list", "data": [endpoint.listed()]}

    # A name such as models:/x@champion has a slash.
    @app.get("/v1/models/{name:path}")
    async def model(name: str, endpoint: Endpoint = found_endpoint) -> dict[str, Any]:
        endpoint.check_model(name)
        return endpoint.listed()

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    return app


async def _answered(answer: ChatAnswer | CompletionAnswer, streams: bool, http: Request) -> Any:
    if streams:
        return StreamingResponse(_events(answer), media_type="text/event-stream")
    said = await _unless_gone(answer.whole(), http)
    if said is None:
        return Response(status_code=GONE)
    return JSONResponse(said)


async def _events(answer: ChatAnswer | CompletionAnswer) -> AsyncIterator[str]:
    """Yield server-sent events. An error after the first token is an event of its own."""
    try:
        async for chunk in answer.chunks():
            yield f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n"
    # The status was sent already; the client gets the error in the stream.
    except Exception as error:
        yield f"data: {json.dumps(_as_api_error(error).body(), ensure_ascii=False)}\n\n"
    yield "data: [DONE]\n\n"


async def _unless_gone(
    work: Coroutine[object, object, dict[str, object]], http: Request
) -> dict[str, object] | None:
    """Return the result of `work`; None if the client went away, which cancels it."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(http))
    try:
        # Not `http.is_disconnected` from time to time, which costs more than the answer where many
        # requests wait for long.
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        gone.result()
        return None
    finally:
        task.cancel()
        gone.cancel()


async def _gone(http: Request) -> None:
    """Return when the client of a request that was read goes away."""
    while (await http.receive())["type"] != "http.disconnect":
        continue


def _as_api_error(error: Exception) -> ApiError:
    if isinstance(error, ApiError):
        return error
    if isinstance(error, EngineFull):
        return ApiError(str(error), status=TOO_MANY, code="queue_full")
    if isinstance(error, UserError):
        return ApiError(str(error))
    return ApiError(str(error), status=FAILED)


def _tell_errors(app: FastAPI) -> None:
    """Answer every error in OpenAI's shape."""

    async def tell(_: Request, error: Exception) -> Response:
        said = _as_api_error(error)
        headers = {"retry-after": "1"} if said.status == TOO_MANY else {}
        if said.status == FAILED:
            headers |= NOT_AGAIN
        if said.status == UNAUTHORIZED:
            headers |= {"www-authenticate": "Bearer"}
        return JSONResponse(said.body(), said.status, headers)

    async def unfit(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return await tell(request, from_validation(list(error.errors())))

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        answer = await tell(request, ApiError(str(error.detail), status=error.status_code))
        answer.headers.update(error.headers or {})
        return answer

    app.add_exception_handler(RequestValidationError, unfit)
    app.add_exception_handler(HTTPException, http)
    for kind in (ApiError, EngineFull, EngineFailed, UserError):
        app.add_exception_handler(kind, tell)


def _describe(app: FastAPI, name: str) -> None:
    """Make the OpenAPI document say what this server does."""
    written = app.openapi

    def described() -> dict[str, Any]:
        """A request that does not fit is answered with 400, as OpenAI does; one model is there."""
        said = written()
        for path in said["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        for kind in ("ChatRequest", "CompletionRequest"):
            said["components"]["schemas"][kind]["properties"]["model"]["enum"] = [name]
        return said

    app.openapi = described  # type: ignore[method-assign]
