"""A trainer with its workers up, for a test."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from rl_core.distributed import Remote
from rl_core.trainers.base import Trainer

T = TypeVar("T", bound=Trainer)


@contextmanager
def built(trainer: T) -> Iterator[T]:
    """Build it; its workers end with the block."""
    try:
        trainer.build()
        yield trainer
    finally:
        trainer.close()


def engine_of(trainer: Trainer) -> Remote:
    """The engine of a trainer of one track."""
    (track,) = trainer.tracks.values()
    return track.sampler.engine.handle
