"""The tree of exceptions. Every class pickles, so an error raised in a Ray worker reaches the
driver unchanged.

`UserError` and its children are errors that the user can fix: the CLI prints their message alone
and exits with code 2. Everything else is a defect or a failed machine, and may be retried.
"""

import errno
from collections.abc import Iterator

OF_A_DISK = (errno.EIO, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ESTALE)
"""Errors of the system that only a disk raises, whether or not they name a file."""


class RLTrainError(Exception):
    """Base of every error this project raises on purpose."""


class UserError(RLTrainError):
    """An input or setting of the user is wrong; the message says what, where, and what would be
    right."""


class RecipeError(UserError):
    """A recipe, profile or override cannot be used."""


class DataError(UserError):
    """Rows, files or data references cannot be used."""


class UnsupportedMediaError(DataError, NotImplementedError):
    """A media reference of a kind that no loader implements yet."""


class ModelError(UserError):
    """A model cannot be found or loaded."""


class ExportMismatch(ModelError):
    """An exported or sent model computes other results than the trained policy."""


class EnvError(UserError):
    """An environment is unknown, registered twice, or refuses its row."""


class MachineLacks(EnvError):
    """An environment needs something that this machine lacks, such as a sandbox."""


class StorageError(UserError):
    """Something could not be written or read back: a full disk, a missing permission, a damaged
    file."""


class ServiceError(UserError):
    """A server or worker cannot be started or reached, or would be open to everybody."""


class NoSignal(UserError):
    """A training from whose rewards nothing can be learnt."""


class StoppedByWatcher(UserError):
    """A run that ended after a checkpoint, because a watcher rang that its recipe sets to
    `stop`."""


class StopTraining(UserError):
    """Raised by a callback of `rl_core.train`, to end the run after the step; the same call
    continues it."""


class ChainStopped(UserError):
    """A chain of recipes that ended after a stage whose version did not become champion."""


class SweepFailed(UserError):
    """Runs of a sweep ended in an error; the others are compared all the same."""


class RewardError(RLTrainError):
    """A reward is missing or not finite."""


class Unreachable(RLTrainError):
    """A server of somebody else did not answer; another attempt may succeed."""


class BrokenCode(RewardError, UserError):
    """Code of the user's, such as an environment, raises the same kind of error in every row."""


class WorkerError(RLTrainError):
    """A worker's method raised; the message holds rank, role, method and the remote traceback."""


class WorkerDied(RLTrainError):
    """A worker process ended while it was needed; a retry rebuilds the workers from the last
    checkpoint."""


class NodeLost(RLTrainError):
    """Machines of the cluster are gone, and no others came in time; a retry waits again."""


class SiblingFailed(RLTrainError):
    """A rank ended because another one failed, whose own error is the cause."""


class WorkerHung(RLTrainError):
    """Workers timed out waiting for others; the message names those that are missing."""


class WorkerOutOfMemory(UserError):
    """A worker needs more memory than is available; the message says what to change."""


class StaleEngine(RLTrainError):
    """A rollout engine was asked to sample with weights that it does not hold; sync it first."""


class WeightMismatch(RLTrainError):
    """After a sync the engine's weights are not the trainer's; the message names the tensors."""


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and all its causes and contexts, each once, even if they form a circle."""
    left, seen = [error], set[int]()
    while left:
        one = left.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            yield one
            left += [one.__context__, one.__cause__]
