"""Conversion of messages to the text that a model reads, by the model's chat template.

Preparation counts with this file and the rollout encodes with it, so both see the same text.
Control tokens that stand in a message are read as text (`control_tokens.py`). Two differences
between templates are handled here:

* Some take a message's content as a string, others (Idefics3, SmolVLM) only as a list of parts.
  Both are tried on a probe text: a template takes the form in which the probe appears in its
  output.
* A prompt whose last message is the assistant's is a prefill: the turn stays open
  (`continue_final_message`) and the reply continues the message. Otherwise the template opens the
  assistant's turn (`add_generation_prompt`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from rl_core.data.prepare.control_tokens import ControlTokens
from rl_core.errors import ModelError, RecipeError
from schemas.rows.messages import called_tools
from schemas.sections.policy import reserved_template_kwargs

Message = dict[str, Any]
Conversation = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, object]]
PROBE = "\u241fprobe\u241f"
"""A text that no template contains by itself."""
PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": "probe_tool",
        "description": PROBE,
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}


class ChatTemplate:
    """One model's chat template with the options of the recipe.

    Args: owner: the tokenizer, or the processor of a vision-language model. template_kwargs:
    options from the recipe.
    Raises: RecipeError when an option is one that is decided here.
    """

    def __init__(self, owner: Any, template_kwargs: Mapping[str, object] | None = None) -> None:
        self.owner, self.template_kwargs = owner, dict(template_kwargs or {})
        if problem := reserved_template_kwargs(self.template_kwargs):
            raise RecipeError(f"model.chat_template_kwargs: {problem}")

    def prompt(self, messages: Conversation, tools: Tools = ()) -> str:
        """Return the text of a prompt, ending where the reply begins.

        Args: tools: functions that the model may call, in OpenAI's form.
        Raises: ModelError when the template cannot continue the assistant's last message, or does
        not show the tools. Errors of the template itself are passed on.
        """
        if is_prefilled(messages):
            return self._continued(messages, tools)
        return self._render(messages, tools, add_generation_prompt=True)

    def conversation(self, messages: Conversation) -> str:
        """Return the text of a complete conversation, without opening a turn after it."""
        return self._render(messages, add_generation_prompt=False)

    @cached_property
    def shows_tools(self) -> bool:
        """True if the template writes the tools that it is given: a prompt with one differs from
        the prompt without."""
        asked = [{"role": "user", "content": "."}]
        try:
            return "probe_tool" in self._render(asked, [PROBE_TOOL], add_generation_prompt=True)
        # Templates run as Jinja and raise what they like, and so does the check of the rendering.
        except Exception:
            return False

    @cached_property
    def marks_answers(self) -> bool:
        """True if the template marks what the assistant says (`{% generation %}`), for the text of
        a tokenizer."""
        template = getattr(self.owner, "chat_template", None)
        marked = isinstance(template, str) and re.search(r"\{%-?\s*generation", template)
        return bool(marked) and hasattr(self.owner, "encode")

    def answer_mask(self, messages: Conversation) -> tuple[list[int], list[int]]:
        """Return the tokens of a complete conversation, and 1 for each that the template marks as
        the assistant's. Only if `marks_answers`."""
        found = self.owner.apply_chat_template(
            [self._shaped(message) for message in messages],
            tokenize=True,
            return_dict=True,
            return_assistant_tokens_mask=True,
            **self.template_kwargs,
        )
        return list(found["input_ids"]), list(found["assistant_masks"])

    @cached_property
    def takes_parts(self) -> bool:
        """True if contents must be lists of parts: the probe appears as a part, but not as a
        string."""
        as_string, as_part = (
            [{"role": "user", "content": PROBE}],
            [{"role": "user", "content": _part(PROBE)}],
        )
        return not self._shows(as_string) and self._shows(as_part)

    def _shows(self, messages: list[Message]) -> bool:
        try:
            text = self.owner.apply_chat_template(messages, tokenize=False, **self.template_kwargs)
        # Templates run as Jinja and raise what they like: what raises does not take this form.
        except Exception:
            return False
        return PROBE in text and f"'{PROBE}'" not in text

    def _render(self, messages: Conversation, tools: Tools = (), **options: bool) -> str:
        shown = [self._shaped(message) for message in messages]
        offered = [self.control_tokens.message(tool) for tool in tools]
        text = self.owner.apply_chat_template(
            shown,
            tokenize=False,
            **options,
            **({"tools": offered} if offered else {}),
            **self.template_kwargs,
        )
        for message in messages:
            _check_tools_are_shown(message, text)
        for tool in offered:
            function: Any = tool.get("function", tool)
            if function["name"] not in text:
                raise ModelError(f"the chat template does not show the tool {function['name']!r}")
        return text

    @cached_property
    def control_tokens(self) -> ControlTokens:
        """The control tokens of the owner's tokenizer."""
        return ControlTokens.of(self.owner)

    def _shaped(self, message: Mapping[str, object]) -> Message:
        message = self.control_tokens.message(message)
        content = message.get("content")
        if isinstance(content, str) and self.takes_parts:
            return {**message, "content": _part(content)}
        return message

    def _continued(self, messages: Conversation, tools: Tools) -> str:
        said = text_of(self.control_tokens.message(messages[-1]))
        try:
            text = self._render(messages, tools, continue_final_message=True)
        # transformers raises ValueError, templates raise what they like.
        except Exception as error:
            if str(error).strip():
                reason = str(error).strip().splitlines()[0]
            else:
                reason = type(error).__name__
            raise ModelError(
                f"the chat template cannot continue the assistant's last message {said[:60]!r} "
                f"({reason}); end the prompt with a user's message"
            ) from error
        if not text.rstrip().endswith(said.strip()):
            raise ModelError(
                f"the chat template cannot continue the assistant's last message {said[:60]!r}: "
                f"it renders it as {text[-60:]!r}; end the prompt with a user's message"
            )
        return text


def is_prefilled(messages: Conversation) -> bool:
    """Return True if the last message is the beginning of the assistant's reply."""
    return bool(messages) and messages[-1].get("role") == "assistant"


def _check_tools_are_shown(message: Mapping[str, object], text: str) -> None:
    """Raises: ModelError where a template, as many do, leaves out calls of tools or their
    answers."""
    for name in called_tools(message):
        if name is not None and name not in text:
            raise ModelError(f"it does not show the call of the tool {name!r}; drop such rows")
    said = text_of(message).strip() if message.get("role") == "tool" else ""
    if said not in text and json.dumps(said, ensure_ascii=False)[1:-1] not in text:
        raise ModelError(f"it does not show the tool's answer {said[:60]!r}; drop such rows")


def text_of(message: Mapping[str, Any]) -> str:
    """Return the text of a message, whether its content is a string or a list of parts."""
    content = message.get("content")
    if isinstance(content, str) or content is None:
        return content or ""
    return "".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))


def with_reply(messages: Conversation, reply: str) -> list[Message]:
    """Return the conversation with the assistant's reply; a prefill and its reply become one
    message."""
    told = [dict(message) for message in messages]
    if not is_prefilled(told):
        return [*told, {"role": "assistant", "content": reply}]
    content = told[-1].get("content") or ""
    longer = content + reply if isinstance(content, str) else [*content, *_part(reply)]
    return [*told[:-1], {**told[-1], "content": longer}]


def _part(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]
