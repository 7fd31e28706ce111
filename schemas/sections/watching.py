"""Reactions to the watchers over a run's metrics. They change no step, and are not part of the
run's identity."""

from enum import StrEnum

from pydantic import ValidationInfo, field_validator

from schemas.sections.section import Section


class Reaction(StrEnum):
    """Reaction to a watcher that fires."""

    OFF = "off"
    """It is not looked for."""
    WARN = "warn"
    """It is said in the log, as an event and in the report, and the run goes on."""
    STOP = "stop"
    """It is said, and the run ends after the checkpoint of the iteration; the same command goes on
    once the reaction is another one."""


class WatchConfig(Section):
    """Signs of a sick training that are looked for after every step, each `off`, `warn` or
    `stop`."""

    signal: Reaction = Reaction.WARN
    """Nearly all groups have equal rewards, so that nothing is learnt."""
    entropy: Reaction = Reaction.WARN
    """The policy's entropy has collapsed."""
    length: Reaction = Reaction.WARN
    """Replies get longer without earning more."""
    truncation: Reaction = Reaction.WARN
    """Replies are cut at the limit of tokens."""
    kl: Reaction = Reaction.WARN
    """The policy jumps away from the one that sampled, or from the reference."""
    delta: Reaction = Reaction.WARN
    """Log-probabilities of trainer and rollout engine drift apart."""
    clip: Reaction = Reaction.WARN
    """Much of the gradient is clipped away."""
    gradient: Reaction = Reaction.WARN
    """The gradient spikes, or an update was skipped because it was not finite."""
    judges: Reaction = Reaction.WARN
    """The scorers that pay rise while one of weight 0, which only looks on, falls."""
    sources: Reaction = Reaction.WARN
    """The rows of one `data_source` teach nothing, or are not sampled any more."""
    memory: Reaction = Reaction.WARN
    """The peak memory of a worker grows from iteration to iteration."""

    @field_validator("*", mode="before")
    @classmethod
    def _yaml_reads_off_as_false(cls, value: object, info: ValidationInfo) -> object:
        if value is True:
            raise ValueError(f"write off, warn or stop (watch.{info.field_name}: on says neither)")
        return Reaction.OFF if value is False else value
