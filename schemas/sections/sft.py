"""The recipe's `sft` block, and what a recipe of the domain `sft` leaves out."""

from enum import StrEnum

from pydantic import Field

from schemas.sections.data import DataConfig
from schemas.sections.rollout import EngineKind, RolloutConfig
from schemas.sections.section import Section

OF_SAMPLES = (
    "samples_per_prompt",
    "max_new_tokens",
    "temperature",
    "max_delta_log_prob",
    "steps_ahead",
)
"""Settings of `rollout` that only act on sampled training rows."""


class TaughtTurns(StrEnum):
    """Turns of the assistant that are trained in a row of `messages`."""

    ALL = "all"
    """Every turn of the assistant."""
    LAST = "last"
    """The last one; earlier turns are read only. For chat templates that change earlier turns, as
    Qwen3's drops their reasoning."""


class SftConfig(Section):
    """Tokenisation of the answers to learn, and noise on their embeddings."""

    max_length: int | None = Field(default=None, ge=2)
    """Longest conversation in tokens. A row that is longer stays in its batch, does not train, and
    is counted. Unset: 2048, or the number of positions of the model if that is smaller. A larger
    value is refused."""
    turns: TaughtTurns = TaughtTurns.ALL
    """Turns of the assistant that are trained, in rows of `messages`; a row of `prompt` and
    `completion` trains the completion alone."""
    neftune_alpha: float = Field(default=0.0, ge=0)
    """Scale of uniform noise on the embeddings in training passes (NEFTune, arXiv 2310.05914): each
    value is in +-alpha / sqrt(tokens of the row x hidden size). 0 adds none; the paper uses 5 to
    15. With noise, equal prompts are not computed together."""


def check_sft(sft: SftConfig, rollout: RolloutConfig, data: DataConfig, *, teaches: bool) -> None:
    """Check that every setting has an effect.

    Args: teaches: True if rows hold the answers to learn. Raises: ValueError naming the key.
    """
    if not teaches:
        if sft != SftConfig():
            raise ValueError("sft: only in the domain sft; leave the block out")
        return
    changed = rollout.model_fields_set & set(OF_SAMPLES)
    for name in (one for one in OF_SAMPLES if one in changed):
        if getattr(rollout, name) != RolloutConfig.model_fields[name].default:
            raise ValueError(
                f"rollout.{name}: nothing is sampled for training in the domain sft; leave it out "
                "(evaluation.max_new_tokens is the longest reply of an evaluation)"
            )
    if rollout.engine is not EngineKind.IN_PROCESS:
        raise ValueError(
            f"rollout.engine: {rollout.engine}: the domain sft plays held-out rows with the "
            "trained module itself; use in_process"
        )
    if data.curriculum is not None:
        raise ValueError("data.curriculum: rows of the domain sft have no pass rate; leave it out")
    if (data.source or {}).get("name") == "default":
        raise ValueError("data.source: the built-in rows hold no answers; name files in data.train")
