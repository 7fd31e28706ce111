"""Settings of evaluations that do not fit the recipe's domain or its registration."""

from schemas.domains import Domain
from schemas.sections.registration import RegistrationConfig, Weights
from schemas.sections.training import EvaluationConfig


def check_evaluation(
    evaluation: EvaluationConfig, registration: RegistrationConfig, domain: Domain
) -> None:
    """Check that the sets can be played, and that what decides on a model is measured in time.

    Raises: ValueError naming the key.
    """
    if not domain.traits.plays:
        for name in ("sets", "scorers"):
            if getattr(evaluation, name):
                raise ValueError(
                    f"evaluation.{name}: in the domains text, vision and sft alone, not {domain}; "
                    "leave it out"
                )
    decides = registration.set
    if decides is not None and decides not in evaluation.sets:
        known = ", ".join(evaluation.sets) or "none"
        raise ValueError(
            f"registration.set {decides!r} is none of evaluation.sets, which are: {known}"
        )
    if registration.from_ is Weights.LAST:
        return
    if not evaluation.eval_every:
        raise ValueError(
            "registration.from: best compares iterations: set evaluation.eval_every to 1 or more"
        )
    if decides is not None and evaluation.sets[decides].at_ends_alone:
        raise ValueError(
            f"registration.from: best compares iterations by the set {decides!r}, which is "
            "measured at_ends_alone; leave that out"
        )
