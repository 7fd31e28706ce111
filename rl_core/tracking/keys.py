"""Names of the user's as keys in MLflow.

A key there takes letters, digits and `_-.:/ ` alone, must be a normal path, and ends after 250
characters; a file, a column, an environment or its metric may have any name. `stored_key` is the
only door: whatever MLflow does not take is written as `_x<hexadecimal>_`, as in `acc_x40_1` for
`acc@1`, and `original_key` reads it back. Ordinary keys stay as they are.
"""

import hashlib
import re

MAX_KEY_LENGTH = 250
_DIGEST_CHARS = 8
_REFUSED = re.compile(
    r"[^\w\-.:/ ]"  # no character of a key
    r"|_(?=x[0-9a-f]*(?:_|[^\w\-.: ]))"  # would be read back as an escape
    r"|^/|/(?=/)|/$"  # an absolute path, an empty part
    r"|(?:(?<=^)|(?<=/))\.(?=[./]|$)"  # the parts `.` and `..`
)
_ESCAPE = re.compile("_x([0-9a-f]*)_")
_EMPTY = "_x_"


def stored_key(text: str, limit: int = MAX_KEY_LENGTH) -> str:
    """Return the key under which MLflow keeps a name: the name itself if it can be one.

    One that is too long ends in a digest, so that two of them stay two.
    """
    if not text:
        return _EMPTY
    key = _REFUSED.sub(lambda found: f"_x{ord(found[0]):x}_", text)
    if len(key) <= limit:
        return key
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_CHARS]
    return f"{key[: limit - _DIGEST_CHARS - 3]}...{digest}"


def original_key(key: str) -> str:
    """Return the name that `stored_key` made a key of, unless it was cut."""
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else "", key)


def stored_text(text: str) -> str:
    """Return a value with what no database takes written out: NUL, and bytes of a file name that
    are not UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def filter_value(text: str) -> str | None:
    """Return a text in quotes for a filter of MLflow's; None if no filter can hold it.

    MLflow knows no escape inside quotes, so nothing that it stores can be found by a text with
    both kinds of them; and no database stores a text that is not UTF-8 (`stored_text`).
    """
    if stored_text(text) != text:
        return None
    for quote in "'\"":
        if quote not in text:
            return f"{quote}{text}{quote}"
    return None
