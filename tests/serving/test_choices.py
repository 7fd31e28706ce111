"""Reasons why a reply ended, as the API names them."""

from typing import Any

import pytest

from rl_core.models.decoding.request import StopReason
from rl_core.serving.choices import Choice
from rl_core.serving.engine import Token

NO_TEXT: Any = None


@pytest.mark.parametrize("reason", [None, *StopReason])
def test_a_reply_that_was_cut_off_says_so(reason: StopReason | None):
    finish = Choice(NO_TEXT, [Token(0, 7, -0.5, [], reason)]).finish
    if reason is None:
        assert finish is None, "it goes on"
    else:
        assert finish == ("length" if reason.is_truncated else "stop")


def test_some_reasons_cut_off_and_some_do_not():
    assert {reason.is_truncated for reason in StopReason} == {True, False}
