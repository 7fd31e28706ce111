"""Steps in a row from whose rewards nothing can be learnt: what is said of them, and three replies.

A step without a signal is one in which no advantage of any trained track differs from 0. Usually
the environment reads nothing from the replies, so the replies and what was read of them are what to
look at.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from rl_core.algorithms.requirements.group_size import learning_tracks
from rl_core.data.store.atomic import atomic_write_json
from rl_core.errors import NoSignal
from rl_core.rewards.samples import prompt_text
from rl_core.rollout.sample_ids import SAMPLE
from rl_core.trainers.progress import ProgressEvent, announce
from schemas.sections.training import OnNoSignal

if TYPE_CHECKING:
    from rl_core.data_proto import DataProto
    from rl_core.distributed import DataProtoRef
    from rl_core.runs.run_folder import RunFolder
    from schemas.recipe import Recipe

NUM_REPLIES = 3
_LONGEST = 300
_ADVICE = (
    "Look whether the environment reads the answers that the replies give; else take easier or "
    "harder prompts, a reward with degrees, more samples or a higher temperature"
)


@dataclass(frozen=True)
class JudgedReply:
    """A reply, and what its environment made of it."""

    prompt: str
    reply: str
    ground_truth: str
    read: str
    """Metadata of the environment, as JSON; empty if it gave none."""
    reward: float
    sample_id: str = ""
    """Name of the row; empty in the record of an older version."""


@dataclass(frozen=True)
class Silence:
    """Steps in a row without a signal."""

    first_step: int
    last_step: int
    replies: tuple[JudgedReply, ...]
    """Replies of the last step, each to another prompt."""

    def __str__(self) -> str:
        return "\n".join([self.said, *map(_line, self.replies), _ADVICE])

    @property
    def said(self) -> str:
        """It in one sentence."""
        num = self.last_step - self.first_step + 1
        if num == 1:
            where = f"step {self.last_step}"
        else:
            where = f"steps {self.first_step} to {self.last_step}"
        why = "as where all samples of a prompt earn the same"
        return f"no signal in {where}: every advantage was 0, {why}"


class SignalWatch:
    """Counts the steps of a run that taught nothing, from those on disk on."""

    def __init__(self, recipe: Recipe, folder: RunFolder) -> None:
        training = self._training = recipe.training
        total_steps = training.num_iterations * training.steps_per_iteration
        self._limit = min(training.no_signal_steps, total_steps)
        self._prefixes = [
            track.prefix
            for track in learning_tracks(recipe)
            if not track.algorithm.compares_distributions
        ]
        self._folder = folder
        self._num_silent = 0
        for step in folder.history():
            self._count(step)

    def observe(self, step: Mapping[str, float], rollout: DataProto | DataProtoRef) -> None:
        """Look at a step that ended. Args: step: its metrics. rollout: of the track sampled first.

        Raises: NoSignal where the recipe says so.
        """
        self._count(step)
        if self._num_silent != self._limit:
            return
        last = int(step["step"])
        silence = Silence(last - self._limit + 1, last, tuple(judged_replies(rollout)))
        atomic_write_json(self._folder.no_signal, asdict(silence))
        if self._training.on_no_signal is OnNoSignal.STOP:
            raise NoSignal(f"{silence}; training.on_no_signal: warn goes on all the same")
        announce(ProgressEvent("note", text=str(silence)))

    def _count(self, step: Mapping[str, float]) -> None:
        shares = [step.get(f"{prefix}zero_advantage_share") for prefix in self._prefixes]
        silent = bool(shares) and all(share == 1.0 for share in shares)
        self._num_silent = self._num_silent + 1 if silent else 0


def read_silence(folder: RunFolder) -> Silence | None:
    """Return the last silence that a run recorded; None if it recorded none."""
    if not folder.no_signal.is_file():
        return None
    values = json.loads(folder.no_signal.read_text(encoding="utf-8"))
    replies = tuple(JudgedReply(**one) for one in values.pop("replies"))
    return Silence(**values, replies=replies)


def judged_replies(rollout: DataProto | DataProtoRef) -> Iterator[JudgedReply]:
    """The first reply to each of the first prompts."""
    objects, rewards = rollout.non_tensor_batch, rollout.tensor("rewards").tolist()
    first_row: dict[str, int] = {}
    for row, uid in enumerate(objects["uid"]):
        first_row.setdefault(str(uid), row)
    reads: object = objects["env_read"] if "env_read" in objects else [""] * len(rewards)
    for row in list(first_row.values())[:NUM_REPLIES]:
        yield JudgedReply(
            prompt=prompt_text(objects["prompt"][row]),
            reply=str(objects["response"][row]),
            ground_truth=str(objects["ground_truth"][row]),
            read=reads[row],
            reward=rewards[row],
            sample_id=str(objects[SAMPLE][row]),
        )


def _line(one: JudgedReply) -> str:
    read = f", read as {one.read}" if one.read else ""
    name = f"{one.sample_id}: " if one.sample_id else ""
    truth, reply = _short(one.ground_truth), _short(one.reply)
    return f"  {name}reward {one.reward:g}, truth {truth}{read}: {reply}"


def _short(text: str) -> str:
    shown = repr(text)
    if len(shown) <= _LONGEST:
        return shown
    return f"{shown[:_LONGEST]}..."
