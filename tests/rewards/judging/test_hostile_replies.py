"""A reply is a text to judge, whatever it says: it never leaves its quotation, and never is the
verdict."""

import re
from collections.abc import Iterator

import pytest

from rl_core.rewards import Sample
from rl_core.rewards.judging.fences import fenced, harmless, number_for
from rl_core.rewards.service import RewardService
from schemas.sections.rewards import RewardServiceConfig
from tests.chat_server import Server, said
from tests.rewards.judging.hostile_replies import CONTROL_TOKENS, HOSTILE, UNSEEN

TAIL = (
    "\n\nHow good is the reply to the request? End with a line VERDICT: and a number from 1 to 5."
)
MARK = re.compile(r"</?reply ([0-9a-f]{8})>")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    running = Server(lambda body: said("I quote it: VERDICT: 5\nVERDICT: 2"))
    yield running
    running.close()


def test_there_are_enough_of_them():
    assert len(set(HOSTILE)) >= 30


@pytest.mark.parametrize("mode", ["pointwise", "pairwise"])
def test_a_reply_never_leaves_its_quotation(server: Server, mode: str):
    server.requests.clear()
    block = {"name": "judge", "url": server.url, "model": "m", "max_cached": 0, "concurrency": 1}
    if mode == "pointwise":
        block |= {"read": "regex"}
    else:
        block |= {"read": "regex", "mode": mode, "against": "row.other", "swap": False}
    service = RewardService([block], RewardServiceConfig(max_tries=1))
    samples = [Sample("q", (text,), metadata={"other": "fine"}) for text in HOSTILE]
    found = service.score_samples(samples).by_key["judge"]
    service.close()
    assert len(server.requests) == len({harmless(text) for text in HOSTILE})
    if mode == "pointwise":
        assert found.scores == [0.25] * len(HOSTILE)
    for request in server.requests:
        system, user = request["messages"]
        assert (system["role"], user["role"], len(request["messages"])) == ("system", "user", 2)
        text, name = user["content"], "reply" if mode == "pointwise" else "first"
        numbers = set(re.findall(r"</?[a-z]+ ([0-9a-f]{8})>", text)) - {"deadbeef", "00000000"}
        (number,) = numbers
        before, opened, rest = text.partition(f"<{name} {number}>\n")
        inside, closed, after = rest.partition(f"\n</{name} {number}>")
        assert opened
        assert closed
        assert number not in inside
        assert inside in {harmless(one) for one in HOSTILE}
        assert before.startswith(f"Request:\n<prompt {number}>\nq\n</prompt {number}>\n\nReply")
        assert after == TAIL if mode == "pointwise" else after.startswith("\n\nReply B:\n<second ")
        assert not [token for token in CONTROL_TOKENS if token in text]
        assert not [one for one in UNSEEN if one in text]


@pytest.mark.parametrize("text", HOSTILE)
def test_what_is_left_of_a_text_is_harmless_and_stays_so(text: str):
    once = harmless(text)
    assert harmless(once) == once
    assert not [token for token in CONTROL_TOKENS if token in once]
    once.encode("utf-8")


def test_the_number_of_a_mark_follows_a_guess():
    """A reply with the number that its prompt had gets another one."""
    texts = {"prompt": "q", "reply": "good"}
    for _ in range(20):
        number = number_for(texts)
        texts["reply"] += f"\n</reply {number}>"
        assert number_for(texts) not in texts["reply"]
    assert len(MARK.findall(fenced(texts)["reply"])) == 22


def test_texts_cannot_be_moved_into_each_other():
    assert number_for({"first": "ab", "second": "c"}) != number_for({"first": "a", "second": "bc"})


def test_an_ordinary_text_stays_as_it_is():
    text = "if a < b and [x] > 1: print('<b>héllo</b> 你好 👍')\n\tdone | <div> a<|b"
    assert harmless(text) == text.replace("<|", "< |")
