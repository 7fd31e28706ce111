"""Text of a reply that may call tools, given out as it comes."""

from __future__ import annotations

from rl_core.envs.calls.form import CallForm, Parsed


class CallWatch:
    """Holds back what may be a call until the reply ends.

    Args: form: how calls are written. begun: the beginning of the reply that was given to the
    model.
    """

    def __init__(self, form: CallForm, begun: str = "") -> None:
        self.form = form
        self._held = begun
        self._is_calling = bool(begun)
        self._is_text = False

    def add(self, piece: str) -> str:
        """Append text. Returns: what is certainly no call."""
        if self._is_text:
            return piece
        self._held += piece
        if self._is_calling:
            return ""
        if self.form.only_first:
            said = self._held.lstrip()
            if any(said.startswith(mark) for mark in self.form.marks):
                self._is_calling = True
                return ""
            if any(mark.startswith(said) for mark in self.form.marks):
                return ""
            self._is_text = True
            return self._let_go(len(self._held))
        found = []
        for mark in self.form.marks:
            if (place := self._held.find(mark)) >= 0:
                found.append(place)
        if found:
            self._is_calling = True
            return self._let_go(min(found))
        return self._let_go(len(self._held) - self._beginning())

    def end(self) -> Parsed:
        """Take apart what was held back."""
        return self.form.parse(self._held)

    def _beginning(self) -> int:
        """Return the length of the longest end of the text that a mark begins with."""
        sizes = range(max(map(len, self.form.marks)), 0, -1)
        ends = (self._held[-size:] for size in sizes if size <= len(self._held))
        for end in ends:
            if any(mark.startswith(end) for mark in self.form.marks):
                return len(end)
        return 0

    def _let_go(self, size: int) -> str:
        text, self._held = self._held[:size], self._held[size:]
        return text
