"""`POST /v1/chat/completions`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

from rl_core.data.prepare.chat_template import Message as TemplateMessage
from rl_core.envs.calls.form import CallForm, Parsed
from rl_core.errors import UserError
from rl_core.rollout.chat.text import Encoded
from rl_core.serving.api_errors import FAILED, ApiError
from rl_core.serving.choices import Choice, called, chat_log_prob, usage
from rl_core.serving.endpoint import Endpoint, answer_head
from rl_core.serving.engine import Asked, Token, TokenStream
from rl_core.serving.pictures import has_pictures, opened
from rl_core.serving.reply_text import ReplyText
from rl_core.serving.sampling import asked_for, check_no_places
from rl_core.serving.schema import ChatRequest, Message, ToolChoice
from rl_core.serving.watching import CallWatch


class ChatAnswer:
    """Answer to one request.

    Args: read: the request's prompt, which was read already. Raises: ApiError, EngineFull when it
    cannot be sampled.
    """

    def __init__(self, request: ChatRequest, endpoint: Endpoint, read: _Read) -> None:
        self.request, self.endpoint = request, endpoint
        self.form, self.begun, self.messages = read.form, read.begun, read.messages
        self.prompt = read.prompt.token_ids
        self.head = answer_head("chatcmpl", request.model)
        asked = self._asked()
        self.stream: TokenStream = endpoint.engine.generate(read.prompt, asked)
        stop, tags = request.stop_strings, self._tags
        self.choices = [
            Choice(ReplyText(endpoint.model.chat.decode, stop, tags))
            for _ in range(asked.num_replies)
        ]
        self.watches = [
            None if self.form is None else CallWatch(self.form, self.begun) for _ in self.choices
        ]

    @classmethod
    async def of(cls, request: ChatRequest, endpoint: Endpoint) -> ChatAnswer:
        """Read a request and begin to answer it.

        Pictures are fetched and processed in a thread of their own, since others are answered
        meanwhile. Raises: ApiError, EngineFull when it cannot be sampled.
        """
        endpoint.check(request)
        messages = [_templated(message) for message in request.messages]
        if has_pictures(messages):
            read = await asyncio.to_thread(_with_pictures, request, endpoint, messages)
        else:
            read = _read(request, endpoint, messages)
        return cls(request, endpoint, read)

    async def whole(self) -> dict[str, object]:
        """Return the answer when everything is sampled."""
        tokens: list[list[Token]] = [[] for _ in self.choices]
        try:
            async for token in self.stream:
                tokens[token.index].append(token)
        finally:
            self.stream.cancel()
        for choice, of_choice in zip(self.choices, tokens, strict=True):
            choice.add_all(of_choice, self.endpoint.model.eos_ids)
        choices = [self._choice(index, choice) for index, choice in enumerate(self.choices)]
        for choice in choices:
            self.endpoint.answered(self.messages, self.prompt, choice["message"])
        return {
            **self.head,
            "object": "chat.completion",
            "choices": choices,
            "usage": self._usage(),
            **({"prompt_token_ids": self.prompt} if self.request.return_token_ids else {}),
        }

    async def chunks(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the answer as it is sampled."""
        try:
            for index in range(len(self.choices)):
                first = self._chunk(index, {"role": "assistant", "content": ""})
                if self.request.return_token_ids and not index:
                    first["prompt_token_ids"] = self.prompt
                yield first
            async for token in self.stream:
                choice, watch = self.choices[token.index], self.watches[token.index]
                piece = choice.add(token, self.endpoint.model.eos_ids)
                said = piece if watch is None else watch.add(piece)
                delta: dict[str, object] = {"content": said} if said else {}
                finish = choice.finish
                if watch is not None and finish is not None:
                    parsed = self._parsed(watch.end(), choice)
                    if parsed.content:
                        delta["content"] = said + parsed.content
                    if parsed.calls:
                        delta["tool_calls"] = called(parsed.calls, indexed=True)
                        finish = self._finish_of_calls
                if finish is not None:
                    said = self._choice(token.index, choice)["message"]
                    self.endpoint.answered(self.messages, self.prompt, said)
                chunk = self._chunk(token.index, delta, finish)
                if self.request.logprobs:
                    entry = chat_log_prob(token, self.endpoint.model)
                    chunk["choices"][0]["logprobs"] = {"content": [entry], "refusal": None}
                if self.request.return_token_ids:
                    chunk["choices"][0] |= {
                        "token_ids": [token.token_id],
                        "token_log_probs": [token.log_prob],
                    }
                yield chunk
            options = self.request.stream_options
            if options is not None and options.include_usage:
                yield {
                    **self.head,
                    "object": "chat.completion.chunk",
                    "choices": [],
                    "usage": self._usage(),
                }
        finally:
            self.stream.cancel()

    def _chunk(self, index: int, delta: dict[str, object], finish: str | None = None) -> Any:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
        return {**self.head, "object": "chat.completion.chunk", "choices": [choice]}

    def _choice(self, index: int, choice: Choice) -> dict[str, Any]:
        text, finish = "".join(choice.pieces), choice.finish
        message: dict[str, object] = {"role": "assistant", "content": text, "refusal": None}
        if self.form is not None:
            parsed = self._parsed(self.form.parse(self.begun + text), choice)
            message["content"] = parsed.content
            if parsed.calls:
                message |= {"content": parsed.content or None, "tool_calls": called(parsed.calls)}
                finish = self._finish_of_calls
        log_probs = None
        if self.request.logprobs:
            entries = []
            for token in choice.tokens:
                entries.append(chat_log_prob(token, self.endpoint.model))
            log_probs = {"content": entries, "refusal": None}
        return {
            "index": index,
            "message": message,
            "logprobs": log_probs,
            "finish_reason": finish,
            **(choice.extension() if self.request.return_token_ids else {}),
        }

    def _parsed(self, parsed: Parsed, choice: Choice) -> Parsed:
        """Check calls against what was asked for. Raises: ApiError when a call that had to be made
        cannot be read."""
        if self.begun and not parsed.calls:
            cut = "; raise max_tokens" if choice.finish == "length" else ""
            raise ApiError(
                "tool_choice: the model wrote no call that can be read"
                f" ({self.begun + ''.join(choice.pieces)!r:.200}){cut}",
                "tool_choice",
                status=FAILED,
                code="no_tool_call",
            )
        one_at_most = self.request.parallel_tool_calls is False
        return Parsed(parsed.content, parsed.calls[:1] if one_at_most else parsed.calls)

    @property
    def _finish_of_calls(self) -> str:
        if isinstance(self.request.tool_choice, ToolChoice):
            return "stop"
        return "tool_calls"

    @property
    def _tags(self) -> frozenset[str]:
        if self.form is None:
            return frozenset()
        return self.form.tags

    def _usage(self) -> dict[str, int]:
        return usage(len(self.prompt), sum(len(choice.tokens) for choice in self.choices))

    def _asked(self) -> Asked:
        request = self.request
        return asked_for(
            request,
            self.prompt,
            self.endpoint.model,
            limit=request.limit,
            num_likely=(request.top_logprobs or 0) if request.logprobs else 0,
            max_replies=self.endpoint.max_replies,
            tags=self._tags,
        )


@dataclass(frozen=True)
class _Read:
    """A request's prompt."""

    messages: list[TemplateMessage]
    prompt: Encoded
    form: CallForm | None
    """Form in which the model may call tools."""
    begun: str
    """Beginning of a reply that has to call one."""


def _with_pictures(
    request: ChatRequest, endpoint: Endpoint, messages: list[TemplateMessage]
) -> _Read:
    if request.prompt_token_ids is not None:
        raise ApiError(
            "prompt_token_ids: does not go with pictures in messages, whose places among the "
            "tokens only the chat template knows",
            "prompt_token_ids",
        )
    return _read(request, endpoint, opened(messages, endpoint.model.chat.why_no_pictures))


def _read(request: ChatRequest, endpoint: Endpoint, messages: list[TemplateMessage]) -> _Read:
    form, begun = _calls(request, endpoint.form)
    chat = endpoint.model.chat
    if request.prompt_token_ids is not None:
        prompt = Encoded(list(request.prompt_token_ids))
        check_no_places(prompt.token_ids, endpoint.model, "prompt_token_ids")
    else:
        tools = [] if form is None else request.tools or []
        # Templates run as Jinja and raise what they like.
        try:
            prompt = endpoint.encode(
                messages, [tool.model_dump(exclude_none=True) for tool in tools]
            )
        except Exception as error:
            said = str(error) or type(error).__name__
            param = "tools" if isinstance(error, UserError) and tools else "messages"
            raise ApiError(
                f"the chat template cannot write these messages: {said:.300}", param
            ) from error
    if begun:
        first = chat.tokenizer.encode(begun, add_special_tokens=False)
        prompt = replace(prompt, token_ids=prompt.token_ids + first)
    return _Read(messages, prompt, form, begun)


def _calls(request: ChatRequest, form: CallForm | None) -> tuple[CallForm | None, str]:
    """Return the form in which the model may call tools, and the beginning of a reply that has
    to."""
    if not request.tools or request.tool_choice == "none":
        return None, ""
    if form is None:
        raise ApiError(
            "tools: the model's chat template has no form of calls that this server knows; "
            "name it with --tool-format",
            "tools",
        )
    if isinstance(request.tool_choice, ToolChoice):
        return form, form.forced(request.tool_choice.function.name)
    return form, form.forced(None) if request.tool_choice == "required" else ""


def _templated(message: Message) -> TemplateMessage:
    """Return a message as chat templates read it: `system` for `developer`, arguments of calls as
    objects."""
    role = "system" if message.role == "developer" else message.role
    made: TemplateMessage = {"role": role, "content": message.shown}
    for key in ("name", "tool_call_id"):
        if (value := getattr(message, key)) is not None:
            made[key] = value
    calls = []
    for call in message.tool_calls or ():
        try:
            arguments = json.loads(call.function.arguments)
        except ValueError as error:
            raise ApiError(
                f"messages: the arguments of {call.function.name} are no JSON: {error}", "messages"
            ) from error
        function = {"name": call.function.name, "arguments": arguments}
        calls.append({"id": call.id, "type": "function", "function": function})
    return made | ({"tool_calls": calls} if calls else {})
