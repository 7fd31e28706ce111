"""The work of a trial in its own process: a row's environment is built, and played if asked."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Mapping, Sequence

from rl_core.envs.registration import make
from rl_core.envs.trials.oracle import play
from rl_core.envs.trials.settings import Finding, Trial, TrialSettings, TrialValues, Verdict
from rl_core.errors import MachineLacks

_WHERE = re.compile(r"^\w+(?: row \S+)?: ")
"""The class and row that environments put before their messages; a report says the place itself."""
_PATH = re.compile(r"\b(?:reward_spec|extra_info)(?:\.\w+|\[\d+\])+")
KNOWN = ("db_id", "data_source", "max_turns", "options", "choices")
"""Columns that an environment may miss."""
PLAY_TIMES = 4
"""Deadline of a played row in those of a built one: it is built and played three times."""


class Builder:
    """Builds the environments of rows, one after the other.

    Args: started: called with a row's position before its turn.
    """

    def __init__(self, settings: TrialSettings, started: Callable[[int], None]) -> None:
        self.settings, self.started = settings, started
        self._lacking: dict[str, str] = {}
        self._open: object = None

    def __call__(self, sent: Sequence[TrialValues]) -> list[Finding]:
        """Return what is wrong with the rows, each sent as the values of a `Trial`.

        A row that exceeds its time ends the process, by the kernel's timer, whatever code it is
        stuck in.
        """
        found = []
        for index, values in enumerate(sent):
            trial = Trial(*values)
            self.started(index)
            rounds = 1 if trial.prompt is None else PLAY_TIMES
            signal.setitimer(signal.ITIMER_REAL, self.settings.timeout_s * rounds)
            found += self._try(index, trial)
        signal.setitimer(signal.ITIMER_REAL, 0)
        return found

    def _try(self, index: int, trial: Trial) -> list[Finding]:
        name = trial.env_class
        if name in self._lacking:
            return [Finding(index, Verdict.NOT_BUILT, self._lacking[name])]
        try:
            env = make(name, self.settings.options.get(name), trial.extras)
        except MachineLacks as error:
            self._lacking[name] = str(error)
            return [Finding(index, Verdict.NOT_BUILT, str(error))]
        # Environments raise what they like; whatever it is, the rollout would fail with it.
        except Exception as error:
            message = told(error)
            return [Finding(index, Verdict.REFUSED, message, field_of(error, message, trial))]
        # An environment stays open until the next one is: what the two share starts only once.
        close = getattr(self._open, "close", None)
        if close is not None:
            close()
        self._open = env
        if trial.prompt is None:
            return []
        again = lambda: make(name, self.settings.options.get(name), trial.extras)  # noqa: E731
        return [Finding(index, *one) for one in play(again, trial.prompt)]


def told(error: Exception) -> str:
    """Return an error's message without the place; with its type if it is not this project's."""
    text = _WHERE.sub("", str(error), count=1)
    if type(error).__module__.startswith("rl_core"):
        return text
    return f"{type(error).__name__}: {text}"


def field_of(error: Exception, message: str, trial: Trial) -> str:
    """Return the column that an environment's message is about; empty if it names none."""
    if path := _PATH.search(message):
        return path[0].partition("[")[0]
    extra = trial.extras.get("extra_info")
    columns = [*KNOWN, *trial.extras, *(extra if isinstance(extra, Mapping) else ())]
    places = {name: at.start() for name in columns if (at := _word(name, message))}
    if places:
        return min(places, key=places.__getitem__)
    if isinstance(error, KeyError) and error.args:
        return str(error.args[0])
    return ""


def _word(name: object, text: str) -> re.Match[str] | None:
    return re.search(rf"(?<!\w){re.escape(str(name))}(?!\w)", text)
