"""A stop string is found in the text of a reply, wherever its tokens are cut."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from rl_core.models.decoding.stop_strings import StopStrings


def text_of(token_ids: list[int], tags: Collection[str]) -> str:
    """Text of byte-level tokens: a token is a byte, or one of `WORDS`."""
    return b"".join(WORDS.get(one, bytes([one % 256])) for one in token_ids).decode(
        "utf-8", errors="replace"
    )


WORDS = {1000: b"</ans", 1001: b"wer>", 1002: b"wer>\n\nSo", 1003: b"wer", 1004: b"aaa"}


def ids(text: str) -> list[int]:
    return list(text.encode())


def first_end(strings: list[str], token_ids: list[int], at_least: int = 0) -> int | None:
    stop = StopStrings.of(strings)
    assert stop is not None
    return stop.cut(token_ids, at_least, text_of)


@pytest.mark.parametrize(
    ("strings", "token_ids", "end"),
    [
        pytest.param(["</answer>"], [*ids("4 </answer> 5")], 11, id="one token a letter"),
        pytest.param(["</answer>"], [*ids("4 "), 1000, 1001, 65], 4, id="across two tokens"),
        pytest.param(["</answer>"], [*ids("4 "), 1000, 1002, 65], 4, id="inside the last token"),
        pytest.param(["</answer>"], [1000, 1003, 65], None, id="not complete"),
        pytest.param(["。"], ids("好。x"), 6, id="a character of several bytes"),
        pytest.param(
            ["好。"], ids("\N{GRINNING FACE}好。x"), 10, id="after a character of four bytes"
        ),
        pytest.param(["ab", "abc"], ids("xabc"), 3, id="the shorter of two"),
        pytest.param(["bc", "abcd"], ids("abcd"), 3, id="the one that is complete first"),
        pytest.param(["\n\n"], ids("a\nb\n\nc"), 5, id="white space"),
        pytest.param(["q"], ids("x" * 500 + "q"), 501, id="far into the reply"),
    ],
)
def test_the_first_complete_string_ends_a_reply(
    strings: list[str], token_ids: list[int], end: int | None
):
    assert first_end(strings, token_ids) == end


def test_a_string_that_came_too_early_does_not_end_a_longer_reply():
    token_ids = ids("a;bcde;f")
    assert first_end([";"], token_ids) == 2
    assert first_end([";"], token_ids, at_least=2) == 7
    # With one more token the text still has the early string, which is not new.
    assert first_end([";"], token_ids[:6], at_least=2) is None


def test_an_overlapping_string_is_new_with_each_token():
    assert first_end(["aa"], ids("aaaa"), at_least=2) == 3


def test_no_strings_are_nothing_to_look_for():
    assert StopStrings.of([]) is None
