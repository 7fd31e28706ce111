"""Checks that a teacher reads tokens as the policy does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rl_core.data.prepare.tokenizer import Tokenizer
from rl_core.errors import ModelError

SHOWN = 40


def check_vocabulary(name: str, teacher: Tokenizer, student: Tokenizer) -> None:
    """Raises: ModelError when two tokenizers number their tokens differently. Args: name: of the
    teacher."""
    theirs, ours = teacher.get_vocab(), student.get_vocab()
    if theirs == ours:
        return
    other = sorted(word for word in {*theirs, *ours} if theirs.get(word) != ours.get(word))
    first = other[0]
    raise ModelError(
        f"teacher {name}: its tokenizer differs from the policy's in {len(other)} tokens, such as "
        f"{first!r}, which is {theirs.get(first, 'unknown')} there and "
        f"{ours.get(first, 'unknown')} here; a teacher judges the policy's own tokens, so take one "
        "with the same tokenizer"
    )


def check_prompts(
    name: str, teacher: Tokenizer, student: Tokenizer, prompts: Iterable[Sequence[int]]
) -> None:
    """Raises: ModelError when the teacher's tokenizer cuts a rendered prompt into other tokens.

    Args: prompts: token ids, as the policy reads them.
    """
    for ids in prompts:
        text = student.decode(ids, skip_special_tokens=False)
        # A text that does not give its own tokens again, such as one with images, says nothing.
        if student.encode(text, add_special_tokens=False) != list(ids):
            continue
        theirs = teacher.encode(text, add_special_tokens=False)
        if theirs != list(ids):
            place = next(
                (
                    at
                    for at, pair in enumerate(zip(theirs, ids, strict=False))
                    if len(set(pair)) > 1
                ),
                min(len(theirs), len(ids)),
            )
            raise ModelError(
                f"teacher {name}: its tokenizer cuts a prompt into other tokens than the policy's: "
                f"{len(theirs)} instead of {len(ids)}, from token {place} on, "
                f"{student.decode(list(ids)[place:])[:SHOWN]!r}; take a teacher with the same "
                "tokenizer"
            )


def check_pictures(name: str, teacher: Any, student: Any) -> None:
    """Raises: ModelError when two processors of pictures give their models other pixels."""
    theirs, ours = (one.image_processor.to_dict() for one in (teacher, student))
    other = sorted(key for key in {*theirs, *ours} if theirs.get(key) != ours.get(key))
    if other:
        key = other[0]
        raise ModelError(
            f"teacher {name}: its pictures are processed otherwise than the policy's, {key}: "
            f"{theirs.get(key)!r} instead of {ours.get(key)!r}; take a teacher of the same family"
        )
