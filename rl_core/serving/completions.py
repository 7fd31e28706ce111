"""`POST /v1/completions`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from rl_core.rollout.chat.text import Encoded
from rl_core.serving.api_errors import ApiError
from rl_core.serving.choices import Choice, exact, finite, usage
from rl_core.serving.endpoint import Endpoint, answer_head
from rl_core.serving.engine import Likely, Scored, Token, TokenStream
from rl_core.serving.reply_text import ReplyText
from rl_core.serving.sampling import asked_for, check_no_places, room_after
from rl_core.serving.schema import CompletionRequest

MAX_PROMPTS = 64


class CompletionAnswer:
    """Answer to one request. Raises: ApiError, EngineFull when it cannot be sampled."""

    def __init__(self, request: CompletionRequest, endpoint: Endpoint) -> None:
        self.request, self.endpoint = request, endpoint
        endpoint.check(request)
        self.head = answer_head("cmpl", request.model)
        self.prompts = self._prompts()
        self.streams: list[TokenStream] = []
        self.num_each = request.n or 1
        decode = endpoint.model.chat.decode
        self.choices = [
            Choice(ReplyText(decode, request.stop_strings))
            for _ in range(len(self.prompts) * self.num_each)
        ]
        for prompt in self.prompts if request.max_tokens != 0 else ():
            asked = asked_for(
                request,
                prompt,
                endpoint.model,
                limit=request.max_tokens,
                num_likely=request.logprobs or 0,
                max_replies=endpoint.max_replies,
            )
            try:
                self.streams.append(endpoint.engine.generate(Encoded(prompt), asked))
            except BaseException:
                self._cancel()
                raise

    async def whole(self) -> dict[str, object]:
        """Return the answer when everything is sampled."""
        scored: list[list[Scored]] = []
        tokens: list[list[Token]] = [[] for _ in self.choices]
        try:
            if self.request.echo and self.request.logprobs is not None:
                for prompt in self.prompts:
                    scored.append(await self.endpoint.engine.score(prompt, self.request.logprobs))
            async for number, token in self._tokens():
                tokens[number].append(token)
        finally:
            self._cancel()
        for choice, of_choice in zip(self.choices, tokens, strict=True):
            choice.add_all(of_choice, self.endpoint.model.eos_ids)
        choices = [
            self._choice(number, choice, scored[number // self.num_each] if scored else [])
            for number, choice in enumerate(self.choices)
        ]
        return {
            **self.head,
            "object": "text_completion",
            "choices": choices,
            "usage": self._usage(),
        }

    async def chunks(self) -> AsyncIterator[dict[str, object]]:
        """Yield the answer as it is sampled."""
        offsets = [0] * len(self.choices)
        try:
            async for number, token in self._tokens():
                choice = self.choices[number]
                piece = choice.add(token, self.endpoint.model.eos_ids)
                said: dict[str, object] = {
                    "index": number,
                    "text": piece,
                    "logprobs": None,
                    "finish_reason": choice.finish,
                }
                if self.request.logprobs is not None:
                    listed, offsets[number] = self._listed([token], offsets[number])
                    said["logprobs"] = listed
                if self.request.return_token_ids:
                    said |= {"token_ids": [token.token_id], "token_log_probs": [token.log_prob]}
                yield {**self.head, "object": "text_completion", "choices": [said]}
            options = self.request.stream_options
            if options is not None and options.include_usage:
                yield {
                    **self.head,
                    "object": "text_completion",
                    "choices": [],
                    "usage": self._usage(),
                }
        finally:
            self._cancel()

    async def _tokens(self) -> AsyncIterator[tuple[int, Token]]:
        """Yield the tokens of all prompts as they come, each with the number of its choice."""
        arrived: asyncio.Queue[tuple[int, Token] | BaseException | None] = asyncio.Queue()

        async def pass_on(place: int, stream: TokenStream) -> None:
            try:
                async for token in stream:
                    arrived.put_nowait((place * self.num_each + token.index, token))
                arrived.put_nowait(None)
            # What ended the stream is raised where its tokens are read.
            except Exception as error:
                arrived.put_nowait(error)

        tasks = [
            asyncio.ensure_future(pass_on(place, stream))
            for place, stream in enumerate(self.streams)
        ]
        try:
            left = len(tasks)
            while left:
                found = await arrived.get()
                if found is None:
                    left -= 1
                elif isinstance(found, BaseException):
                    raise found
                else:
                    yield found
        finally:
            for task in tasks:
                task.cancel()

    def _cancel(self) -> None:
        for stream in self.streams:
            stream.cancel()

    def _choice(self, number: int, choice: Choice, scored: list[Scored]) -> dict[str, object]:
        prompt = self.prompts[number // self.num_each]
        text = "".join(choice.pieces)
        if self.request.echo:
            text = self.endpoint.model.tokenizer.decode(prompt, skip_special_tokens=False) + text
        log_probs = None
        if self.request.logprobs is not None:
            log_probs, _ = self._listed([*scored, *choice.tokens], 0)
        ids = {}
        if self.request.return_token_ids:
            ids = {"prompt_token_ids": prompt, **choice.extension()}
        finish = choice.finish if choice.tokens else "length"
        return {
            "index": number,
            "text": text,
            "logprobs": log_probs,
            "finish_reason": finish,
            **ids,
        }

    def _listed(
        self, tokens: list[Scored | Token] | list[Token], offset: int
    ) -> tuple[dict[str, object], int]:
        """Return tokens in the form of `logprobs`, and where the text after them begins."""
        word = self.endpoint.model.word
        words = [word(token.token_id) for token in tokens]
        offsets = []
        for one in words:
            offsets.append(offset)
            offset += len(one)
        listed = {
            "tokens": words,
            "token_logprobs": [
                None if token.log_prob is None else finite(token.log_prob) for token in tokens
            ],
            "top_logprobs": [self._top(token) for token in tokens],
            "text_offset": offsets,
        }
        return listed, offset

    def _top(self, token: Scored | Token) -> dict[str, float] | None:
        """Return the most probable tokens at a place, the given one among them."""
        if token.log_prob is None:
            return None
        likely: Likely = exact(token) if isinstance(token, Token) else token.likely
        top = {}
        for one, log_prob in likely:
            top[self.endpoint.model.word(one)] = finite(log_prob)
        return {self.endpoint.model.word(token.token_id): finite(token.log_prob)} | top

    def _usage(self) -> dict[str, int]:
        sampled = sum(len(choice.tokens) for choice in self.choices)
        return usage(sum(map(len, self.prompts)), sampled)

    def _prompts(self) -> list[list[int]]:
        given = self.request.prompts
        if not given or len(given) > MAX_PROMPTS:
            raise ApiError(f"prompt: {len(given)} prompts; expected 1 to {MAX_PROMPTS}", "prompt")
        encode = self.endpoint.model.tokenizer.encode
        prompts = [encode(one) if isinstance(one, str) else list(one) for one in given]
        for prompt in prompts:
            check_no_places(prompt, self.endpoint.model, "prompt")
            room_after(prompt, self.endpoint.model, at_least=0)
        return prompts
