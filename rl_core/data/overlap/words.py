"""Words of a text, in which case, punctuation, spacing and the writing of a character make no
difference.

Unicode NFKC, then case folded. What is compared are words and numbers; punctuation only separates,
unless it calculates with numbers or letters: the plus of `12 + 13` and the minus of `V - IV` are
words, the dash of `well-known` and the stars of `**bold**` are not. Scripts without spaces
(Chinese, Japanese, Thai, Lao, Khmer, Burmese) give a word per character.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence

Segment = tuple[str, ...]
"""Words of a sentence or line."""

_SPACELESS = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\U00020000-\U0003ffff"
)
_FULL_WIDTH = "\u3002\uff01\uff1f\uff1b\uff1a"
_SIGNS = "\u00d7\u00f7\u00b1\u221a\u2264\u2265\u2260"
_BOUNDARY = r"[.!?:;]+[\"')\]}*_]*(?=\s|$)|\n+|\s{2,}"
_NUMBER = r"\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?"
_SIGNED = r"(?<![^\s(=+*/^<>,\[{])-\d+(?:\.\d+)?"
_CALCULATES = r"[-+*/^=<>]"
_ASCII = re.compile(f"{_BOUNDARY}|{_SIGNED}|{_CALCULATES}|{_NUMBER}|[a-z][a-z0-9]*")
_ANY = re.compile(
    f"{_BOUNDARY}|[{_FULL_WIDTH}]|{_SIGNED}|{_CALCULATES}|[{_SIGNS}]|{_NUMBER}|[{_SPACELESS}]"
    f"|(?:(?![{_SPACELESS}])[^\\W\\d_])(?:(?![{_SPACELESS}])[^\\W_])*"
)
_CHARACTER = re.compile(f"[{_SPACELESS}]")
_ENDS = frozenset(".!?:;\n" + _FULL_WIDTH)
_BETWEEN = frozenset("-+*/^=<>")
_OPERATORS = _BETWEEN | frozenset(_SIGNS)
_ROMAN = re.compile("[ivxlcdm]+")
_NUMBER_WORDS = """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
    sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety
    hundred thousand million billion half twice double triple quarter
"""
_COUNTED = frozenset(_NUMBER_WORDS.split()) | frozenset("二三四五六七八九十百千万亿")
_NUMBERING = re.compile(
    r"\s*(?:(?:question|problem|exercise|task|example|q)\s*#?\d{1,4}[.):]|\(?\d{1,4}[.)])\s+(?=\S)"
)
"""Number of a question in its file, as in `12. Find x` and `Question 12: find x`."""


def segments_of(text: str) -> list[Segment]:
    """Return the words of each sentence or line of a text; without any word, what is visible is
    one."""
    folded = text.lower() if text.isascii() else _folded(text)
    if numbering := _NUMBERING.match(folded):
        folded = folded[numbering.end() :]
    segments: list[Segment] = []
    words: list[str] = []
    signs: list[str] = []
    """Signs since the last word."""
    for token in (_ASCII if folded.isascii() else _ANY).findall(folded):
        if token in _BETWEEN:
            signs.append(token)
            continue
        if token[0] in _ENDS or token.isspace():
            if words:
                segments.append(tuple(words))
            words, signs = [], []
            continue
        if token[0] == "-":
            words += _calculating(words, signs, token[1:])
            words.append("-")
            signs, token = [], token[1:]
        elif signs:
            words += _calculating(words, signs, token)
            signs = []
        words.append(token.replace(",", ""))
    if words:
        segments.append(tuple(words))
    if not segments and (visible := "".join(folded.split())):
        return [(visible,)]
    return segments


def is_number(word: str) -> bool:
    """Return True if a word is a number, or calculates with numbers."""
    return word[0].isdecimal() or word in _OPERATORS or word in _COUNTED


def is_character(word: str) -> bool:
    """Return True if a word is a character of a script without spaces."""
    return _CHARACTER.match(word) is not None


def num_words(words: Sequence[str]) -> float:
    """Return how many words of English a text is about as long as: two characters make one."""
    return sum(0.5 if is_character(word) else 1.0 for word in words)


def readable(words: Iterable[str], longest: int = 160) -> str:
    """Return words as a text of at most `longest` characters, its middle left out."""
    parts: list[str] = []
    for word in words:
        if parts and not (is_character(word) and is_character(parts[-1])):
            parts.append(" ")
        parts.append(word)
    text = "".join(parts).encode("utf-8", "backslashreplace").decode()
    half = (longest - 3) // 2
    if len(text) <= longest:
        return text
    return f"{text[:half]}...{text[-half:]}"


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold().replace("\u2212", "-")


def _calculating(words: Sequence[str], signs: Sequence[str], following: str) -> Sequence[str]:
    """Return the sign between two words if it calculates with them: they are numbers or letters."""
    if len(signs) != 1 or not words or not _is_operand(following):
        return ()
    return signs if _is_operand(words[-1]) else ()


def _is_operand(word: str) -> bool:
    return len(word) == 1 or word[0].isdecimal() or _ROMAN.fullmatch(word) is not None
