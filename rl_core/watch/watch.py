"""All watchers over the metrics of a run.

Alarms follow from the metrics alone: a resumed run and a report, which read them from disk,
find the same as the run that measured them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rl_core.algorithms.requirements.group_size import LearningTrack, learning_tracks
from rl_core.rewards.combine import ENVIRONMENT
from rl_core.rewards.resolve import stated_weights
from rl_core.watch import (
    clip,
    delta,
    entropy,
    gradient,
    judges,
    kl,
    length,
    memory,
    signal,
    sources,
    truncation,
)
from rl_core.watch.view import Facts, View
from rl_core.watch.watcher import Alarm, Watcher
from schemas.recipe import Recipe
from schemas.sections.watching import Reaction

WATCHERS: tuple[Watcher, ...] = (
    *(signal.WATCHER, entropy.WATCHER, length.WATCHER, truncation.WATCHER, kl.WATCHER),
    *(delta.WATCHER, clip.WATCHER, gradient.WATCHER, judges.WATCHER, sources.WATCHER),
    memory.WATCHER,
)
"""Every watcher, in the order of the recipe's `watch`."""
SAME_ALARM = 5
"""Steps without a ring after which the next one is an alarm of its own."""


class Watch:
    """The watchers of a recipe, and their alarms so far."""

    def __init__(self, recipe: Recipe, history: Sequence[Mapping[str, float]] = ()) -> None:
        """Create the watchers. Args: history: metrics of the finished steps, in order."""
        on = [one for one in WATCHERS if _reaction(recipe, one) is not Reaction.OFF]
        tracks = learning_tracks(recipe)
        views = [View(track.prefix, _facts(recipe, track)) for track in tracks]
        self._of_run = View("", Facts()), [one for one in on if one.of_run]
        self._of_tracks = views, [one for one in on if not one.of_run]
        self._recipe = recipe
        self.alarms: list[Alarm] = []
        for metrics in history:
            self.observe(metrics)

    def observe(self, metrics: Mapping[str, float]) -> list[Alarm]:
        """Look at the next step. Args: metrics: of the step, with `step`.

        Returns: the alarms that begin with it.
        """
        begun = []
        of_run, run_watchers = self._of_run
        tracks, track_watchers = self._of_tracks
        for view, watchers in ((of_run, run_watchers), *((one, track_watchers) for one in tracks)):
            view.add(metrics)
            for watcher in watchers:
                evidence = watcher.look(view)
                if evidence is not None and (alarm := self._ring(watcher, view, evidence)):
                    begun.append(alarm)
        return begun

    def _ring(self, watcher: Watcher, view: View, evidence: str) -> Alarm | None:
        """Add to the watcher's last alarm, or begin one and return it."""
        track = view.prefix.rstrip("/")
        for place in reversed(range(len(self.alarms))):
            known = self.alarms[place]
            if (known.watcher, known.track) == (watcher.name, track):
                if view.step - known.last_step > SAME_ALARM:
                    break
                self.alarms[place] = replace(known, last_step=view.step, evidence=evidence)
                return None
        alarm = Alarm(
            watcher=watcher.name,
            track=track,
            first_step=view.step,
            last_step=view.step,
            evidence=evidence,
            cause=watcher.cause,
            advice=watcher.advice,
            rows=watcher.rows,
            reaction=_reaction(self._recipe, watcher),
        )
        self.alarms.append(alarm)
        return alarm


def stopping(alarms: Sequence[Alarm]) -> Alarm | None:
    """Return the first alarm at which the recipe wants the run to stop."""
    return next((one for one in alarms if one.reaction is Reaction.STOP), None)


def _reaction(recipe: Recipe, watcher: Watcher) -> Reaction:
    return getattr(recipe.watch, watcher.name)


def _facts(recipe: Recipe, track: LearningTrack) -> Facts:
    weights = stated_weights(recipe.rewards)
    return Facts(
        max_grad_norm=recipe.training.max_grad_norm,
        prompts_per_step=recipe.training.prompts_per_step,
        learns_from_advantages=track.algorithm.learns_from_advantages,
        compares_siblings=track.algorithm.needs_siblings,
        has_own_end=not track.prefix,
        paying={ENVIRONMENT: 1.0} | {key: one for key, one in weights.items() if one},
        onlookers=[key for key, one in weights.items() if not one],
    )
