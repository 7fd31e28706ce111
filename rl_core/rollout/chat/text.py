"""Conversion between messages and tokens: the chat template of one tokenizer."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

from rl_core.data.prepare.chat_template import ChatTemplate, Message, Tools, with_reply
from rl_core.data.prepare.control_tokens import special_ids
from rl_core.data.prepare.items import PromptItem
from rl_core.data.prepare.tokenizer import Tokenizer
from rl_core.errors import DataError, ModelError, RecipeError
from rl_core.models.chat.turns import (
    FIRST,
    CannotContinue,
    added_ids,
    continuation,
    derive_turns,
    first_control,
    mark_of,
)
from rl_core.models.media import PromptMedia
from rl_core.rollout.chat.observed import shown_pictures

ANCHOR = "a"
"""A text that no tokenizer merges with the following whitespace or mark."""


@dataclass(frozen=True)
class Encoded:
    """An encoded prompt."""

    token_ids: list[int]
    media: PromptMedia | None = None


class ChatOptions(TypedDict, total=False):
    """Options of every `ChatFormat`, as in the recipe."""

    keep_special_tokens: Sequence[str] | None
    keep_earlier_turns: bool


class ChatFormat:
    """Encodes prompts and observations, decodes replies, all with the same template and options."""

    why_no_images = (
        "the row has images, which this language model cannot see; use a vision-language model"
    )
    """Error message for a row with images."""
    why_no_pictures = (
        "this language model reads text and sees no pictures; ask a vision-language model"
    )
    """Error message for a message with a picture; empty for a model that sees them."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template_kwargs: Mapping[str, object],
        stop_ids: Collection[int] = (),
        *,
        keep_special_tokens: Sequence[str] | None = None,
        keep_earlier_turns: bool = False,
        template: ChatTemplate | None = None,
    ) -> None:
        """Create the chat format.

        Args: stop_ids: tokens that end a reply, besides the tokenizer's end-of-sequence token and
        those that the template writes after a reply. keep_special_tokens, keep_earlier_turns: as in
        the recipe. template: replaces the tokenizer's own.

        Raises: RecipeError when a token that ends replies is to be kept.
        """
        self.tokenizer, self.template_kwargs = tokenizer, template_kwargs
        self.template = template or ChatTemplate(tokenizer, template_kwargs)
        self.keep_earlier_turns = keep_earlier_turns
        self.turns = derive_turns(self.template, tokenizer)
        self.stop_ids = frozenset({tokenizer.eos_token_id, *stop_ids, *self.turns.stop_ids})
        self._added = added_ids(tokenizer)
        self._special = special_ids(tokenizer)
        # An end of turn need not be a special token.
        self._dropped = self.stop_ids.union(self._special.values())
        self._never_kept = self.stop_ids | {tokenizer.bos_token_id, tokenizer.pad_token_id}
        self._kept = self._kept_ids(keep_special_tokens)

    def encode_prompt(
        self, messages: list[Message], item: PromptItem, tools: Tools = ()
    ) -> Encoded:
        """Encode a row's prompt, ending where the reply begins. Args: tools: functions that the
        model may call. Raises: ModelError when the row has images."""
        if item["env_extras"].get("images"):
            raise ModelError(self.why_no_images)
        return Encoded(self.encode(messages, tools))

    def conversation(self, messages: Sequence[Message], tools: Tools = ()) -> Encoded:
        """Encode a conversation as a client of OpenAI's API has it, ending where the reply begins.

        Raises: DataError when it shows pictures that the model cannot see.
        """
        if shown_pictures(messages):
            raise DataError(self.why_no_pictures)
        return Encoded(self.encode([*messages], tools))

    def of_client(self, messages: Sequence[Message]) -> list[Message]:
        """Return a client's messages in the form that `observation` takes."""
        return [*messages]

    def places(self, token_ids: Sequence[int]) -> int:
        """Return the number of tokens that stand for pictures."""
        return 0

    def encode(self, messages: list[Message], tools: Tools = ()) -> list[int]:
        """Return the token ids of a prompt, ending where the reply begins; a last message of the
        assistant's is continued. Args: tools: functions that the model may call."""
        text = self.template.prompt(messages, tools)
        return self.tokenizer.encode(text, add_special_tokens=False)

    def decode(self, token_ids: list[int], tags: Collection[str] = ()) -> str:
        """Return the text of a reply as its environment reads it, without control tokens.

        Args: tags: special tokens that the environment parses. They are always kept, unless they
        end replies.
        """
        kept = self._kept | self._ids_of(tags) - self._never_kept
        said = [one for one in token_ids if one in kept or one not in self._dropped]
        return self.tokenizer.decode(said, skip_special_tokens=False)

    def history(self, messages: Sequence[Message], item: PromptItem) -> list[Message]:
        """Return a row's prompt in the form that `observation` takes."""
        return [dict(message) for message in messages]

    def said(self, messages: Sequence[Message]) -> list[Message]:
        """Return an environment's messages in the form in which `observation` puts them after a
        reply. Raises: DataError when they hold anything but text."""
        check_is_text(messages)
        return [dict(message) for message in messages]

    def observation(
        self,
        messages: Sequence[Message],
        after: list[int],
        history: Sequence[Message] = FIRST,
        tools: Tools = (),
    ) -> list[int]:
        """Return the tokens of `observed`."""
        return self.observed(messages, after, history, tools).token_ids

    def observed(
        self,
        messages: Sequence[Message],
        after: list[int],
        history: Sequence[Message] = FIRST,
        tools: Tools = (),
    ) -> Encoded:
        """Return the tokens between a reply and the next one, and the pictures among them: the end
        of the reply's turn (unless the reply wrote one itself), the observation messages, and the
        opening of the next turn. The reply's own tokens are never re-encoded.

        A reply may have ended with another stop token than the one the template writes. It then
        counts as the end of the turn, but not as a mark that opens the next role's.
        Args: history: the conversation before the reply, rendered again to check that the template
        continues it. tools: functions that the prompt shows.
        Raises: CannotContinue when the template cannot continue the conversation; DataError on a
        part of a message that the model cannot read.
        """
        self.check_several_turns()
        rest = continuation(
            self.template,
            history,
            self.said(messages),
            strict=not self.keep_earlier_turns,
            tools=tools,
        )
        encoded = self._encode_rest(rest, messages)
        token_ids = encoded.token_ids
        first = first_control(self.tokenizer, token_ids, self._added)
        if (
            first is None
            or not after
            or after[-1] not in self.stop_ids
            or token_ids[first] not in self.stop_ids
        ):
            return encoded
        is_written = after[-1] == token_ids[first] or token_ids[first] not in self.turns.opening_ids
        if is_written:
            return replace(encoded, token_ids=token_ids[first + 1 :])
        return encoded

    def gone_on(self, history: Sequence[Message], messages: Sequence[Message]) -> list[Message]:
        """Return the history of the next reply: one more reply, of which only the position is
        known, and an observation."""
        return [*with_reply(history, mark_of(len(history))), *self.said(messages)]

    def check_places(self, token_ids: list[int], media: PromptMedia | None) -> None:
        """Check that a conversation has as many places for pictures as it shows, so that further
        ones come after them. Raises: DataError."""
        places, shown = self.places(token_ids), 0 if media is None else media.num_tokens
        if places != shown:
            raise DataError(
                f"a reply wrote {places - shown} tokens that stand for pictures, so what the next "
                "observation shows would be read in their place"
            )

    def check_several_turns(self) -> None:
        """Check that this template supports several turns, whatever their content.

        Raises: CannotContinue when it does not.
        """
        if self.turns.cannot:
            raise CannotContinue(
                f"{self.turns.cannot}. This model plays environments of one turn; for several, "
                "use a model whose chat template writes all turns"
            )
        if self.turns.rewrites and not self.keep_earlier_turns:
            raise CannotContinue(
                f"{self.turns.rewrites}, so what the policy reads in later turns would differ "
                "from what the template writes. Set rollout.episodes.keep_earlier_turns: true to "
                "leave earlier turns as they were sampled, or use environments of one turn"
            )

    def _encode_rest(self, rest: str, messages: Sequence[Message]) -> Encoded:
        """Return the tokens of a text that follows a reply. Some tokenizers put a space before a
        text that begins with a word. Args: messages: of the environment, which the text shows."""
        encoded = self._read(rest, messages)
        if first_control(self.tokenizer, encoded.token_ids[:1], self._added) is not None:
            return encoded
        anchor = self.tokenizer.encode(ANCHOR, add_special_tokens=False)
        anchored = self._read(ANCHOR + rest, messages)
        if anchored.token_ids[: len(anchor)] == anchor:
            return replace(anchored, token_ids=anchored.token_ids[len(anchor) :])
        return encoded

    def _read(self, text: str, messages: Sequence[Message]) -> Encoded:
        """Return the tokens of a rendered text. Args: messages: whose pictures it shows."""
        return Encoded(self.tokenizer.encode(text, add_special_tokens=False))

    def _kept_ids(self, names: Sequence[str] | None) -> frozenset[int]:
        if names is None:
            return self._text_tokens()
        ending = sorted(name for name in names if self._ids_of([name]) & self._never_kept)
        if ending:
            raise RecipeError(
                f"rollout.keep_special_tokens: {', '.join(ending)} ends replies (or begins or "
                "pads texts) and is never part of a reply's text; remove it"
            )
        return self._ids_of(names)

    def _text_tokens(self) -> frozenset[int]:
        """Return the special tokens that are kept by default: all but the control tokens of the
        template."""
        return frozenset(self._special.values()) - self.turns.control_ids - self._never_kept

    def _ids_of(self, names: Collection[str]) -> frozenset[int]:
        """Return the ids of those names that are special tokens here; others are ordinary text,
        which is always kept."""
        return frozenset(self._special[name] for name in names if name in self._special)


def check_is_text(messages: Sequence[Message]) -> None:
    """Raises: DataError when a message that is no prompt holds a picture or another file, naming
    its kind."""
    for message in messages:
        parts = message.get("content")
        kinds = [] if isinstance(parts, str) else [one.get("type") for one in parts or ()]
        if others := [kind for kind in kinds if kind != "text"]:
            raise DataError(
                f"a message of role {message.get('role')} holds a part of type {others[0]!r}; it "
                "must be text here"
            )
