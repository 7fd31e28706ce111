"""Tokens of a conversation with the answers to learn: a prompt, and a response with its mask.

The response begins with the first answer and ends with the token that ends the last one, as a
sampled reply would. Of an answer the text and the token that ends its turn are trained; what the
template writes behind that (a newline), and what others say in between, is read only.
"""

from __future__ import annotations

from dataclasses import dataclass

from rl_core.data.prepare.chat_template import Message
from rl_core.data.prepare.items import PromptItem
from rl_core.data.prepare.taught_turns import taught_tokens
from rl_core.errors import DataError
from rl_core.models.media import PromptMedia
from rl_core.rollout.chat.text import ChatFormat, check_is_text
from schemas.sections.sft import SftConfig

OVERLONG, UNTAUGHT = "length", "no answer"
"""Reasons why a row does not train."""


@dataclass(frozen=True)
class TaughtRow:
    """Tokens of a row; one that does not train has as many as a row needs to exist."""

    prompt: list[int]
    response: list[int]
    mask: list[int]
    """1 for each token of `response` that is trained."""
    idle: str | None = None
    """Reason why the row does not train."""
    media: PromptMedia | None = None
    """Images of the prompt."""


class TaughtEncoder:
    """Encoder of prepared conversations with a model's chat format.

    Args: max_length: longest conversation in tokens.
    """

    def __init__(self, chat: ChatFormat, config: SftConfig, max_length: int) -> None:
        self.chat, self.config, self.max_length = chat, config, max_length
        written = chat.turns.end_id
        self.end_id = chat.tokenizer.eos_token_id if written is None else written

    def __call__(self, item: PromptItem) -> TaughtRow:
        """Return the tokens of a row.

        Raises: DataError naming the row when it cannot be known what to train; ModelError when it
        has images that the model does not support.
        """
        completion = item["env_extras"].get("completion")
        if not completion:
            return self._idle(UNTAUGHT)
        chat, prompt = self.chat, list(item["prompt"])
        encoded = chat.encode_prompt(prompt, item)
        try:
            check_is_text(completion)
            taught = taught_tokens(
                chat.tokenizer,
                chat.template,
                chat.history(prompt, item),
                chat.said(completion),
                self.config.turns,
            )
        except DataError as error:
            raise DataError(f"row {item['uid']} field completion: {error}") from error
        first, opening = taught.turns[0][0], self._opening(prompt, item)
        same = min(first, len(opening))
        if taught.ids[:same] != opening[:same]:
            raise DataError(
                f"row {item['uid']} field completion: the chat template renders the prompt "
                "otherwise when an answer follows; change model.chat_template_kwargs"
            )
        # The model's processor writes as many tokens for a picture as it needs, all in the prompt.
        shown = encoded.token_ids[: len(encoded.token_ids) - (len(opening) - same)]
        response, mask = self._response(taught.ids, taught.turns)
        row = TaughtRow([*shown, *taught.ids[same:first]], response, mask, media=encoded.media)
        if len(row.prompt) + len(response) > self.max_length:
            return self._idle(OVERLONG)
        return row

    def _opening(self, prompt: list[Message], item: PromptItem) -> list[int]:
        """Return the tokens of the prompt's text, with one mark for each picture."""
        text = self.chat.template.prompt(self.chat.history(prompt, item))
        return self.chat.tokenizer.encode(text, add_special_tokens=False)

    def _response(
        self, ids: list[int], turns: list[tuple[int, int]]
    ) -> tuple[list[int], list[int]]:
        first = turns[0][0]
        mask = [0] * len(ids)
        stop = 0
        for start, stop in turns:
            last = self._end_of_turn(ids, start, stop)
            mask[start:last] = [1] * (last - start)
        last = self._end_of_turn(ids, *turns[-1])
        response, trained = ids[first:last], mask[first:last]
        if response[-1] not in self.chat.stop_ids:
            # The template ends a turn by the next one's opening, which no last turn has.
            return [*response, self.end_id], [*trained, 1]
        return response, trained

    def _end_of_turn(self, ids: list[int], start: int, stop: int) -> int:
        """Return the place after the token that ends a turn, or `stop` if the template writes
        none."""
        ends = [at for at in range(start, stop) if ids[at] in self.chat.stop_ids]
        if ends:
            return ends[-1] + 1
        is_opening = stop < len(ids) and ids[stop] in self.chat.turns.opening_ids
        return stop + 1 if is_opening else stop

    def _idle(self, why: str) -> TaughtRow:
        token = [self.chat.tokenizer.eos_token_id]
        return TaughtRow(token, token, [0], why)
