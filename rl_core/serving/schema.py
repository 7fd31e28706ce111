"""Requests of the OpenAI API that this server answers, with vLLM's extensions.

A parameter that would change the answer and is not supported is refused by name; those that change
nothing here (`user`, `metadata`, ...) are accepted.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from schemas.sections.sampling import checked_stop

PARTS = ("text", "image_url")
"""Types of the parts that a message's content may have."""
PICTURE_ADDRESS = r"^(data:image/[a-zA-Z0-9.+-]+;base64,|https?://[^/])"
MAX_CHOICES, MAX_LIKELY, MAX_STOPS = 128, 20, 16
LARGEST_SEED = 2**63 - 1
SMALLEST_TEMPERATURE = 0.01
Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]


def fault(param: str, message: str) -> PydanticCustomError:
    """Return the error of parameters that do not go together."""
    return PydanticCustomError("fault", "{message}", {"param": param, "message": message})


class ImageUrl(BaseModel):
    """A picture: its bytes, or where they are."""

    model_config = ConfigDict(extra="forbid", strict=True)

    url: Annotated[str, Field(pattern=PICTURE_ADDRESS)]
    """`data:image/png;base64,…` (or another type that PIL reads), or an http or https address."""
    detail: Literal["auto", "high", "original"] | None = None
    """Changes nothing: the model's own processor decides on the resolution."""

    @field_validator("url", mode="before")
    @classmethod
    def _is_picture(cls, url: object) -> object:
        if isinstance(url, str) and not re.match(PICTURE_ADDRESS, url):
            raise ValueError(
                "must be data:image/png;base64,… (or image/jpeg, image/webp, …) or an http or "
                "https address"
            )
        return url


class Part(BaseModel):
    """Part of a message's content: a text or a picture."""

    model_config = ConfigDict(extra="ignore", strict=True)

    type: str
    text: str | None = None
    image_url: ImageUrl | None = None

    @model_validator(mode="after")
    def _can_be_read(self) -> Part:
        if self.type not in PARTS:
            raise ValueError(
                f"a part of type {self.type!r}: this server reads {' and '.join(PARTS)}"
            )
        if (self.text if self.type == "text" else self.image_url) is None:
            raise ValueError(f"a part of type {self.type!r} has no {self.type!r}")
        return self

    @property
    def shown(self) -> dict[str, object]:
        """The part as OpenAI's API has it."""
        if self.image_url is None:
            return {"type": "text", "text": self.text or ""}
        return {"type": "image_url", "image_url": {"url": self.image_url.url}}


class CalledFunction(BaseModel):
    """A function's name and its arguments as JSON text."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: Name
    arguments: str = "{}"


class ToolCall(BaseModel):
    """A call that the assistant made earlier."""

    model_config = ConfigDict(extra="forbid", strict=True)

    id: str = ""
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None


class Message(BaseModel):
    """A turn of the conversation."""

    model_config = ConfigDict(extra="ignore", strict=True)

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=128)] | None = None
    tool_call_id: str | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Message:
        if self.content is None and not self.tool_calls:
            raise ValueError(f"the {self.role}'s message has no content")
        return self

    @property
    def shown(self) -> str | list[dict[str, object]]:
        """Content as one text; as its parts where a picture is among them."""
        if not isinstance(self.content, list):
            return self.content or ""
        if any(part.image_url for part in self.content):
            return [part.shown for part in self.content]
        return "".join(part.text or "" for part in self.content)


class Function(BaseModel):
    """A function that the model may call."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """JSON schema of the arguments; shown to the model, not enforced."""
    strict: Literal[False] | None = None


class Tool(BaseModel):
    """A tool that the model may call."""

    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["function"]
    function: Function


class FunctionChoice(BaseModel):
    """Name of the function that has to be called."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: Name


class ToolChoice(BaseModel):
    """The tool that has to be called."""

    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["function"]
    function: FunctionChoice


class StreamOptions(BaseModel):
    """Options of a stream."""

    model_config = ConfigDict(extra="forbid", strict=True)

    include_usage: bool = False
    include_obfuscation: bool | None = None


class ResponseFormat(BaseModel):
    """Form of the answer; only text."""

    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["text"]


class Asking(BaseModel):
    """Parameters that both kinds of requests have."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str
    n: int | None = Field(default=1, ge=1, le=MAX_CHOICES)
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: float | None = Field(default=1.0, ge=0, le=100)
    """0 is greedy."""
    top_p: float | None = Field(default=1.0, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, lt=2**31)
    """Number of most probable tokens that are kept; unset, 0 and -1 keep all."""
    min_p: float | None = Field(default=0.0, ge=0, le=1)
    repetition_penalty: float | None = Field(default=1.0, ge=0.01, le=100)
    min_tokens: int | None = Field(default=0, ge=0, lt=2**31)
    seed: int | None = Field(default=None, ge=0, le=LARGEST_SEED)
    """Reply number i is the first one of seed + i; unset draws a seed."""
    max_tokens: int | None = Field(default=None, ge=1, lt=2**31)
    stop: str | Annotated[list[str], Field(max_length=MAX_STOPS)] | None = None
    return_token_ids: bool | None = False
    """Add `prompt_token_ids`, and per choice `token_ids` and `token_log_probs`: the log-probability
    that each token was sampled with."""
    presence_penalty: float | None = Field(default=0.0, ge=0, le=0)
    frequency_penalty: float | None = Field(default=0.0, ge=0, le=0)
    logit_bias: Annotated[dict[str, float], Field(max_length=0)] | None = None
    user: str | None = None

    @field_validator("temperature", mode="after")
    @classmethod
    def _cold_is_greedy(cls, temperature: float | None) -> float | None:
        if temperature is not None and 0 < temperature < SMALLEST_TEMPERATURE:
            raise ValueError(f"must be 0 (greedy) or at least {SMALLEST_TEMPERATURE}")
        return temperature

    @field_validator("stop", mode="after")
    @classmethod
    def _strings_can_be_found(cls, stop: str | list[str] | None) -> list[str] | None:
        if stop is None:
            return None
        return checked_stop([stop] if isinstance(stop, str) else stop)

    @model_validator(mode="after")
    def _options_of_a_stream_need_one(self) -> Asking:
        if self.stream_options is not None and not self.stream:
            raise fault("stream_options", "goes with stream: true")
        return self

    @property
    def stop_strings(self) -> list[str]:
        """Strings that end a reply."""
        return list(self.stop or ())


class ChatRequest(Asking):
    """Request of `/v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1)]
    prompt_token_ids: Annotated[list[TokenId], Field(min_length=1)] | None = None
    """Prompt as tokens, which are read in place of the rendered messages."""
    tools: Annotated[list[Tool], Field(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = True
    max_completion_tokens: int | None = Field(default=None, ge=1, lt=2**31)
    logprobs: bool | None = False
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_LIKELY)
    response_format: ResponseFormat | None = None
    chat_template_kwargs: None = None
    metadata: dict[str, str] | None = None
    store: Literal[False] | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @model_validator(mode="after")
    def _goes_together(self) -> ChatRequest:
        if self.top_logprobs and not self.logprobs:
            raise fault("top_logprobs", "goes with logprobs: true")
        names = [tool.function.name for tool in self.tools or ()]
        if isinstance(self.tool_choice, ToolChoice):
            wanted = self.tool_choice.function.name
            if wanted not in names:
                raise fault("tool_choice", f"{wanted!r} is none of the tools {names}")
        elif self.tool_choice in ("required", "auto") and not names:
            raise fault("tool_choice", "goes with tools")
        if len(set(names)) < len(names):
            raise fault("tools", "two functions have the same name")
        return self

    @property
    def limit(self) -> int | None:
        """Most tokens of a reply."""
        newer = self.max_completion_tokens
        if newer is None:
            return self.max_tokens
        return newer


Prompt = Annotated[str, Field(min_length=1)] | list[TokenId] | list[str] | list[list[TokenId]]


class CompletionRequest(Asking):
    """Request of `/v1/completions`."""

    prompt: Prompt
    """Text or token ids of one prompt, or of several."""
    echo: bool | None = False
    logprobs: int | None = Field(default=None, ge=0, le=MAX_LIKELY)
    max_tokens: int | None = Field(default=16, ge=0, lt=2**31)
    """0 goes with `echo`: the prompt is scored, and nothing is sampled."""
    best_of: int | None = None
    suffix: None = None

    @model_validator(mode="after")
    def _goes_together(self) -> CompletionRequest:
        if self.max_tokens == 0 and not self.echo:
            raise fault("max_tokens", "0 goes with echo: true")
        if self.echo and self.stream:
            raise fault("echo", "does not go with stream")
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise fault("best_of", "must be n, since every sampled reply is returned")
        return self

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """The prompts, as texts or as tokens."""
        given: Any = self.prompt
        if isinstance(given, str):
            return [given]
        if given and isinstance(given[0], int):
            return [given]
        return given
