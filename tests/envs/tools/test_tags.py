"""Text between tags is what the regular expressions say that the one-pass search replaces."""

import random
import re

from rl_core.envs.tools.tags import first_tagged, tagged, without_tagged

NEAREST = re.compile(r"<t>((?:(?!<t>).)*?)</t>", re.DOTALL)
FIRST = re.compile(r"<t>(.*?)</t>", re.DOTALL)


def test_it_finds_what_the_patterns_find():
    draw = random.Random(0)
    pieces = ["<t>", "</t>", "a", "\n", "<", "t>", "<t", "/"]
    for _ in range(5000):
        text = "".join(draw.choices(pieces, k=draw.randrange(12)))
        first = FIRST.search(text)
        assert tagged(text, "t") == NEAREST.findall(text), text
        assert first_tagged(text, "t") == (first[1] if first else None), text
        assert without_tagged(text, "t") == FIRST.sub("", text), text
