"""What the Prefect UI reads as Markdown shows as it was written."""

import pytest

from tasks.prefect_ui.artifacts import as_it_is


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ("<think>two red</think>\\boxed{2}", r"\<think\>two red\</think\>\\boxed{2}"),
        ("3 * 4, **bold**, `code`, _it_, a_b", r"3 \* 4, \*\*bold\*\*, \`code\`, \_it\_, a_b"),
        ("so\n#### 7", "so\n\\#### 7"),
        ("- one\n2. two\n    3) three\n---", "\\- one\n2\\. two\n3\\) three\n\\---"),
        ("-4", "-4"),
        ("0.250 to 0.750", "0.250 to 0.750"),
        ("&lt; [link](http://x)", r"\&lt; \[link\](http://x)"),
    ],
)
def test_markup_in_a_reply_is_text(written: str, sent: str) -> None:
    assert as_it_is(written) == sent
