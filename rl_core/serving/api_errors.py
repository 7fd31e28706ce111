"""Errors of the endpoint in OpenAI's shape: `{"error": {message, type, param, code}}`."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from rl_core.errors import RLTrainError

BAD_REQUEST, UNAUTHORIZED, NOT_FOUND, TOO_MANY, FAILED = 400, 401, 404, 429, 500


class ApiError(RLTrainError):
    """A request that is answered with an error.

    Args: param: the request's parameter that is at fault.
    """

    def __init__(
        self, message: str, param: str | None = None, *, status: int = BAD_REQUEST, code: str = ""
    ) -> None:
        super().__init__(message)
        self.message, self.param, self.status, self.code = message, param, status, code

    def body(self) -> dict[str, object]:
        """Return the answer's body."""
        said = {
            "message": self.message,
            "type": TYPES.get(self.status, "invalid_request_error"),
            "param": self.param,
            "code": self.code or None,
        }
        return {"error": said}


TYPES = {TOO_MANY: "rate_limit_error", FAILED: "server_error"}
"""Types of errors that are not the request's fault."""


class Fault(BaseModel):
    """Description of an error."""

    message: str
    type: str
    param: str | None
    """The request's parameter that is at fault."""
    code: str | None


class ErrorAnswer(BaseModel):
    """Answer to a request that failed."""

    error: Fault


def _inner(errors: list[Any]) -> Any:
    """Return the first fault; of a list that might also have been a text, the list's own."""
    *place, last = errors[0]["loc"]
    if last != "str":
        return errors[0]
    inside = [one for one in errors if len(one["loc"]) > len(place) + 1]
    return next((one for one in inside if [*one["loc"][: len(place)]] == place), errors[0])


def from_validation(errors: list[Any]) -> ApiError:
    """Return the error of a request that does not fit its schema: its first fault."""
    first = _inner(errors)
    place = [str(part) for part in first["loc"] if part != "body"]
    # Parts that name the member of a union say nothing to who wrote the request.
    param = ".".join(part for part in place if part.isidentifier() or part.isdigit()) or None
    if first["type"] == "fault":
        param = first["ctx"]["param"]
        return ApiError(f"{param}: {first['ctx']['message']}", param)
    message = str(first["msg"]).removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        message = "this server does not know the parameter"
    elif first["type"] == "json_invalid":
        return ApiError(f"the body is no JSON: {(first.get('ctx') or {}).get('error', message)}")
    given = "" if first["type"] in ("missing", "extra_forbidden") else f", got {first['input']!r}"
    return ApiError(f"{param or 'body'}: {message}{given:.120}", param)
