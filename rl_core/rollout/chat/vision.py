"""Conversion between messages with images and tokens: the processor of one vision-language model.

Rows hold text with a mark `<image>` in the place of each image, as MMPR does; without any mark,
images come first.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, Unpack

from rl_core.data.prepare.chat_template import ChatTemplate, Message, Tools, text_of
from rl_core.data.prepare.items import PromptItem
from rl_core.data.prepare.tokenizer import Tokenizer
from rl_core.data.read.row_images import open_image
from rl_core.envs.tool_env.offer import TOOLS
from rl_core.errors import DataError
from rl_core.models.causal_lm import CausalLMPolicy
from rl_core.models.chat.tokenizer import load_processor, load_tokenizer
from rl_core.models.family import picture_facts, sees_pictures, why_no_pictures
from rl_core.models.vlm import family_of, media_of
from rl_core.rollout.chat.observed import parts_of, shown_pictures
from rl_core.rollout.chat.text import ChatFormat, ChatOptions, Encoded

if TYPE_CHECKING:
    from transformers import ProcessorMixin

MARK = "<image>"
MAX_REMEMBERED = 128
"""Number of prompts whose images are cached as tensors; siblings come one after the other."""


class PictureReader:
    """Converts messages and images to tokens and tensors, by a processor. Args: as for
    `VisionChat`, and keeps_pictures: media keep the images themselves, too."""

    def __init__(
        self,
        processor: Any,
        model_type: str,
        image_token_id: int,
        template_kwargs: Mapping[str, object],
        *,
        keeps_pictures: bool = False,
    ) -> None:
        self.processor, self.family, self.image_token_id = (
            processor,
            family_of(model_type),
            image_token_id,
        )
        self.keeps_pictures = keeps_pictures
        self.template = ChatTemplate(processor, template_kwargs)
        self._reading = threading.Lock()

    def __call__(
        self, messages: Sequence[Message], images: Sequence[str], tools: Tools = ()
    ) -> Encoded:
        """Encode a prompt that ends where the reply begins.

        Raises: DataError when an image cannot be opened, or marks and images differ in number.
        """
        return self.read(self.template.prompt(with_pictures(messages, len(images)), tools), images)

    def read(self, text: str, images: Sequence[str]) -> Encoded:
        """Encode a rendered text with as many pictures as it has places for. Raises: DataError when
        an image cannot be opened, or the text has another number of places."""
        pictures = [open_image(image) for image in images]
        shown = {"images": [pictures]} if pictures else {}
        places = text.count(self.processor.image_token)
        if pictures and places != len(pictures):
            raise DataError(
                f"{len(pictures)} pictures for {places} places in the text that the chat template "
                "writes; it must write one for each part of type image"
            )
        try:
            # A tokenizer may keep settings from one call to the next.
            with self._reading:
                inputs = self.processor(
                    text=[text], add_special_tokens=False, return_tensors="pt", **shown
                )
        except ValueError as error:
            raise DataError(f"{len(pictures)} pictures do not fit their text: {error}") from error
        media = media_of(inputs, self.family, self.image_token_id) if pictures else None
        if media is not None and self.keeps_pictures:
            media = replace(media, pictures=tuple(pictures))
        return Encoded(inputs["input_ids"][0].tolist(), media)


class VisionChat(ChatFormat):
    """A `ChatFormat` for prompts with images, which are opened and processed once for all
    siblings."""

    why_no_pictures = ""
    max_remembered = MAX_REMEMBERED

    def __init__(
        self,
        processor: Any,
        model_type: str,
        image_token_id: int,
        template_kwargs: Mapping[str, object],
        stop_ids: Collection[int] = (),
        *,
        keeps_pictures: bool = False,
        **options: Unpack[ChatOptions],
    ) -> None:
        """Create the chat format.

        Args: keeps_pictures: as for `PictureReader`. options: further ones of `ChatFormat`.
        """
        given = processor, model_type, image_token_id, template_kwargs
        self.reader = PictureReader(*given, keeps_pictures=keeps_pictures)
        self.image_token_id = image_token_id
        template = self.reader.template
        super().__init__(
            processor.tokenizer, template_kwargs, stop_ids, template=template, **options
        )
        self._known: OrderedDict[bytes, Encoded] = OrderedDict()
        self._knowing = threading.Lock()

    def encode_prompt(
        self, messages: list[Message], item: PromptItem, tools: Tools = ()
    ) -> Encoded:
        """Return tokens, image tokens included, and the images as tensors.

        Raises: DataError when an image cannot be opened, or marks and images differ in number.
        """
        images = list(item["env_extras"].get("images") or [])
        return self._once([messages, images, list(tools)], self.reader, messages, images, tools)

    def conversation(self, messages: Sequence[Message], tools: Tools = ()) -> Encoded:
        """Encode a conversation as a client of OpenAI's API has it, with its pictures as tensors.

        Raises: DataError when a picture cannot be opened or has no place in the rendered text.
        """
        images = shown_pictures(messages)
        if not images:
            return Encoded(self.encode([*messages], tools))
        told = self.said(self.of_client(messages))
        text = self.reader.template.prompt(told, tools)
        if any(message["role"] == "assistant" for message in told):
            # Siblings have said different things.
            return self.reader.read(text, images)
        return self._once([text, images], self.reader.read, text, images)

    def of_client(self, messages: Sequence[Message]) -> list[Message]:
        """Return a client's messages in the form that `observation` takes: a row's mark of a
        picture is a text like any other there."""
        out = []
        for message in messages:
            content = message.get("content")
            parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
            out.append({**message, "content": parts})
        return out

    def history(self, messages: Sequence[Message], item: PromptItem) -> list[Message]:
        """Return a row's prompt in the form that `observation` takes, with images in their
        places."""
        return with_pictures(messages, len(item["env_extras"].get("images") or []))

    def said(self, messages: Sequence[Message]) -> list[Message]:
        """Return an environment's messages in the form that `observation` uses: pictures keep their
        places. Raises: DataError on a part that is neither text nor a picture."""
        return [_with_places(message) for message in messages]

    def places(self, token_ids: Sequence[int]) -> int:
        """Return the number of tokens that stand for pictures; a reply may write some itself."""
        return token_ids.count(self.image_token_id)

    def _once(self, given: object, read: Callable[..., Encoded], *args: object) -> Encoded:
        """Return what was read of the same before, or read it."""
        text = json.dumps(given, sort_keys=True, default=str)
        key = hashlib.blake2b(text.encode(), digest_size=16).digest()
        with self._knowing:
            found = self._known.get(key)
        if found is None:
            found = read(*args)
            with self._knowing:
                self._known[key] = found
                while len(self._known) > self.max_remembered:
                    self._known.popitem(last=False)
        return found

    def _read(self, text: str, messages: Sequence[Message]) -> Encoded:
        return self.reader.read(text, shown_pictures(messages))

    def _text_tokens(self) -> frozenset[int]:
        """Return the empty set: most special tokens of these models stand for images, which are not
        text."""
        return frozenset()


class ChatBundle(Protocol):
    """A loaded model that writes text."""

    @property
    def source(self) -> str:
        """Folder or hub id of the model."""
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer."""
        ...

    @property
    def processor(self) -> ProcessorMixin | None:
        """Processor of a vision-language model."""
        ...

    @property
    def policy(self) -> CausalLMPolicy:
        """The loaded model."""
        ...


def chat_format(
    bundle: ChatBundle,
    template_kwargs: Mapping[str, object],
    stop_ids: Collection[int] = (),
    *,
    keeps_pictures: bool = False,
    **options: Unpack[ChatOptions],
) -> ChatFormat:
    """Return the chat format of a bundle's model.

    Args: keeps_pictures: as for `PictureReader`. options: further ones of `ChatFormat`.
    """
    if bundle.processor is None:
        chat = ChatFormat(bundle.tokenizer, template_kwargs, stop_ids, **options)
        chat.why_no_images = why_no_pictures(bundle.source)
        return chat
    config = bundle.policy.language_model.config
    return VisionChat(
        bundle.processor,
        config.model_type,
        config.image_token_id,
        template_kwargs,
        stop_ids,
        keeps_pictures=keeps_pictures,
        **options,
    )


def with_pictures(messages: Sequence[Message], num_images: int) -> list[Message]:
    """Return messages whose contents are lists of parts: text, and an image at each mark of a
    user's message.

    Raises: DataError when the numbers of marks and images differ.
    """
    marks = sum(_content(message).count(MARK) for message in messages if message["role"] == "user")
    if marks not in (0, num_images):
        raise DataError(
            f"prompt: {marks} marks {MARK} for {num_images} images; write one for each image, or "
            "none"
        )
    first = True
    out = []
    for message in messages:
        parts: list[dict[str, str]] = []
        if message["role"] == "user":
            if first and not marks:
                parts += [{"type": "image"} for _ in range(num_images)]
            first = False
            pieces = _content(message).split(MARK)
            for index, piece in enumerate(pieces):
                parts += [{"type": "image"}] if index else []
                parts += [{"type": "text", "text": piece}] if piece else []
        else:
            parts.append({"type": "text", "text": _content(message)})
        out.append({**message, "content": parts})
    return out


def _with_places(message: Message) -> Message:
    """Return a message of an environment with its texts, and a place for each picture."""
    if isinstance(message.get("content"), str) or message.get("content") is None:
        return with_pictures([message], 0)[0]
    parts: list[dict[str, str]] = []
    for kind, value in parts_of(message):
        parts.append({"type": "text", "text": value} if kind == "text" else {"type": "image"})
    return {**message, "content": parts}


def _content(message: Message) -> str:
    return text_of(message)


def prompt_tokenizer(source: str, *, text_alone: bool) -> Tokenizer:
    """Return the tokenizer with which preparation counts the prompts of a located model, exactly as
    the rollout encodes them.

    One with `why_no_images` counts text-only rows, and gives the reason for refusing others. One
    with `count_items` counts the rows of a vision-language model, since only its processor knows
    how many tokens an image takes. Raises: ModelError.
    """
    if text_alone or not sees_pictures(source):
        tokenizer = load_tokenizer(source)
        tokenizer.why_no_images = why_no_pictures(source)
        return tokenizer
    processor = load_processor(source)
    facts = picture_facts(source)

    def count_items(
        items: Sequence[PromptItem], template_kwargs: Mapping[str, object]
    ) -> list[int]:
        read = PictureReader(processor, *facts, template_kwargs)
        counts: list[int] = []
        for item in items:
            images = item["env_extras"].get("images") or []
            counts.append(len(read(item["prompt"], images, item.get(TOOLS, ())).token_ids))
        return counts

    processor.tokenizer.count_items = count_items
    return processor.tokenizer
