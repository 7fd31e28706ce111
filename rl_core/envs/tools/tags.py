"""Text between tags such as `<tool>` and `</tool>`, found in one pass.

Regular expressions for it look through the rest of the text again for every opening tag that is
never closed, and a reply may hold thousands of them.
"""


def tagged(text: str, name: str) -> list[str]:
    """Return what each `</name>` closes, back to the nearest `<name>` before it."""
    opening = f"<{name}>"
    parts = text.split(f"</{name}>")[:-1]
    return [part.rpartition(opening)[2] for part in parts if opening in part]


def first_tagged(text: str, name: str) -> str | None:
    """Return what lies between the first `<name>` and the next `</name>`; None if either is
    missing."""
    _, _, rest = text.partition(f"<{name}>")
    inner, closed, _ = rest.partition(f"</{name}>")
    return inner if closed else None


def without_tagged(text: str, name: str) -> str:
    """Return the text without each `<name>` and what follows it up to the next `</name>`."""
    kept: list[str] = []
    while True:
        before, _, rest = text.partition(f"<{name}>")
        _, closed, after = rest.partition(f"</{name}>")
        if not closed:
            return "".join([*kept, text])
        kept.append(before)
        text = after
