"""Settings of sampling that rollouts, evaluations and named evaluation sets share: the tokens that
may be drawn, and the strings that end a reply."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field, field_validator, model_validator

from schemas.sections.section import Section

CUTS = ("top_p", "top_k", "min_p")
"""Settings that leave out improbable tokens."""
UNKNOWN_CHARACTER = "\ufffd"


class SamplingConfig(Section):
    """Choice of the next token, and strings that end a reply. The defaults draw from the whole
    distribution until the model ends the reply.

    `repetition_penalty` and `min_new_tokens` change the logits before the temperature; `top_k`,
    then `top_p` or `min_p`, leave out tokens after it, as in transformers and vLLM.
    """

    top_p: float = Field(default=1.0, gt=0, le=1)
    """Least probability that the kept tokens have together; the most probable ones are kept. 1
    keeps all."""
    top_k: int | None = Field(default=None, ge=1)
    """Number of most probable tokens that are kept, with all that are as probable as the last;
    unset keeps all."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    """Least probability of a kept token as a share of the most probable token's; 0 keeps all."""
    repetition_penalty: float = Field(default=1.0, ge=0.01, le=100)
    """Factor by which the logits of tokens that occur in the prompt or the reply so far are
    lowered: positive ones are divided by it, negative ones multiplied; 1 changes nothing."""
    min_new_tokens: int = Field(default=0, ge=0)
    """Number of tokens of a reply before which neither an end-of-reply token may be drawn nor a
    stop string ends it."""
    stop: list[str] | None = None
    """Strings that end a reply as soon as its text has one of them, in addition to those of its
    environment. The string stays in the reply, and its tokens are trained. Unset means none in
    rollouts, and in evaluations those of the rollout."""

    @field_validator("stop", mode="after")
    @classmethod
    def _strings_can_be_found(cls, stop: list[str] | None) -> list[str] | None:
        if stop is None:
            return None
        return checked_stop(stop)

    @model_validator(mode="after")
    def _one_cut_of_the_tail(self) -> "SamplingConfig":
        if self.top_p < 1 and self.min_p > 0:
            raise ValueError(
                f"top_p {self.top_p} and min_p {self.min_p} both leave out improbable tokens, and "
                "what is left depends on which comes first, in which engines differ: keep one"
            )
        return self

    @model_validator(mode="after")
    def _least_is_no_more_than_most(self) -> "SamplingConfig":
        most = getattr(self, "max_new_tokens", None)
        if most is not None and self.min_new_tokens > most:
            raise ValueError(
                f"min_new_tokens {self.min_new_tokens} is more than max_new_tokens {most}: lower it"
            )
        return self

    @property
    def keeps_all(self) -> bool:
        """True if every token may be drawn with the model's own probability."""
        return not self.leaves_out and self.repetition_penalty == 1

    @property
    def cuts_nothing(self) -> bool:
        """True if neither `top_k` nor `top_p` nor `min_p` leaves out a token."""
        return not any(name in CUTS for name in self.altered)

    @property
    def altered(self) -> list[str]:
        """Names of the settings that are not at their default."""
        names: list[str] = []
        for name, field in SamplingConfig.model_fields.items():
            if getattr(self, name) != field.default:
                names.append(name)
        return names

    @property
    def leaves_out(self) -> list[str]:
        """Names of the settings by which some tokens cannot be drawn."""
        return [name for name in self.altered if name in (*CUTS, "min_new_tokens")]


class EvaluationSampling(SamplingConfig):
    """Sampling of an evaluation, greedy unless it has a temperature."""

    temperature: float = Field(default=0.0, ge=0, le=100)
    """Softmax temperature of sampling; 0 takes the most probable token."""

    @property
    def is_greedy(self) -> bool:
        """True if every setting is at its default."""
        return not self.temperature and not self.altered

    @field_validator("temperature", mode="after")
    @classmethod
    def _cold_is_greedy(cls, temperature: float) -> float:
        if 0 < temperature < 0.01:
            raise ValueError("must be 0 (greedy) or at least 0.01")
        return temperature

    @model_validator(mode="after")
    def _greedy_replies_have_no_tail(self) -> "EvaluationSampling":
        if not self.temperature and not self.cuts_nothing:
            cut = [name for name in self.altered if name in CUTS]
            raise ValueError(
                f"{' and '.join(cut)} changes no greedy reply: set temperature, or leave it out"
            )
        return self


SAMPLED: Mapping[str, type[SamplingConfig]] = {
    "rollout": SamplingConfig,
    "evaluation": EvaluationSampling,
}
"""Sections of a recipe that hold these settings."""


def checked_stop(stop: list[str]) -> list[str]:
    """Return stop strings that a reply's text may have. Raises: ValueError for others."""
    for one in stop:
        if not one:
            raise ValueError("a stop string is empty, and would end every reply; remove it")
        if UNKNOWN_CHARACTER in one:
            raise ValueError(
                f"the stop string {one!r} has the replacement character U+FFFD, which stands for "
                "unfinished characters; write the text itself"
            )
    if twice := sorted({one for one in stop if stop.count(one) > 1}):
        raise ValueError(f"the stop string {twice[0]!r} is listed twice; keep one")
    return stop


def without_default_sampling(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe's values without sampling settings at their default.

    A recipe that draws from the whole distribution thereby has the identity that it had before it
    could do otherwise.
    """
    kept = dict(values)
    for name, model in SAMPLED.items():
        if name in values:
            kept[name] = {
                key: value
                for key, value in values[name].items()
                if key not in model.model_fields or value != model.model_fields[key].default
            }
    return kept
