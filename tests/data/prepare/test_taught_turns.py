"""Tokens of the assistant's turns: marked by the template, compared with prefixes, or refused."""

from typing import Any

import pytest

from rl_core.data.prepare.chat_template import ChatTemplate
from rl_core.data.prepare.taught_turns import taught_tokens
from rl_core.errors import DataError
from schemas.sections.sft import TaughtTurns
from tests.conftest import character_tokenizer

PROMPT = [{"role": "user", "content": "a"}]
TALK = [
    {"role": "assistant", "content": "one"},
    {"role": "user", "content": "b"},
    {"role": "assistant", "content": "two"},
]
MARKED = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}<|im_end|>"
    "{% endgeneration %}{% else %}{{ m['content'] }}<|im_end|>{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FORGETS = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['role'] != 'assistant' or loop.last %}{{ m['content'] }}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def texts(template: str | None = None, turns: TaughtTurns = TaughtTurns.ALL) -> list[str]:
    tokenizer: Any = character_tokenizer()
    tokenizer.chat_template = template or tokenizer.chat_template
    found = taught_tokens(tokenizer, ChatTemplate(tokenizer), PROMPT, TALK, turns)
    return [tokenizer.decode(found.ids[start:stop]) for start, stop in found.turns]


def test_every_turn_of_the_assistant_is_found_without_marks() -> None:
    assert [text.rstrip() for text in texts()] == ["one<|im_end|>", "two<|im_end|>"]


def test_the_marks_of_a_template_decide() -> None:
    assert texts(MARKED) == ["one<|im_end|>", "two<|im_end|>"]
    assert texts(MARKED, TaughtTurns.LAST) == ["two<|im_end|>"]


def test_a_template_that_changes_earlier_turns_teaches_the_last_alone() -> None:
    with pytest.raises(DataError, match=r"message 1 .*set sft\.turns: last"):
        texts(FORGETS)
    assert [text.rstrip() for text in texts(FORGETS, TaughtTurns.LAST)] == ["two<|im_end|>"]


def test_a_token_across_the_beginning_of_an_answer_is_refused() -> None:
    class Joining:
        """A tokenizer that joins two line ends to one token."""

        def __init__(self) -> None:
            self.inner: Any = character_tokenizer()

        def encode(self, text: str, **options: Any) -> list[int]:
            return [ord(one) for one in text.replace("\n\n", "\u2028")]

    joining = Joining()
    said = [{"role": "assistant", "content": "\nlate"}]
    with pytest.raises(DataError, match="to one token"):
        taught_tokens(joining, ChatTemplate(joining.inner), PROMPT, said)
