"""Sampling settings that a recipe's domain or placement has no use for."""

from schemas.domains import Domain
from schemas.sections.sampling import EvaluationSampling, SamplingConfig


def check_sampling(
    rollout: SamplingConfig,
    evaluation: EvaluationSampling,
    domain: Domain,
    *,
    sp_size: int,
    has_plans: bool,
) -> None:
    """Check that each setting has the effect that it promises.

    Args: has_plans: True if replies are plans of images. Raises: ValueError for a setting without
    effect, or with log-probabilities that training cannot compute.
    """
    set_here = [f"rollout.{name}" for name in rollout.altered]
    set_here += [f"evaluation.{name}" for name in evaluation.altered]
    if evaluation.temperature:
        set_here.append("evaluation.temperature")
    if set_here and not domain.traits.samples_tokens:
        raise ValueError(
            f"{set_here[0]}: no tokens are sampled in the domain {domain}; leave it out"
        )
    ends = [name for name in set_here if name.endswith((".stop", ".min_new_tokens"))]
    if ends and has_plans:
        raise ValueError(
            f"{ends[0]}: a plan in the domain {domain} is no text that could end early; leave it "
            "out"
        )
    restricting = [name for name in rollout.altered if name != "stop"]
    if restricting and sp_size > 1:
        raise ValueError(
            f"rollout.{restricting[0]}: with placement.sp_size {sp_size}, ranks that compute each "
            "sequence together have the log-probabilities of the whole distribution alone; set "
            "sp_size to 1, or leave it out"
        )
