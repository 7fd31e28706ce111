"""The held-out score of a distillation's teacher: the recipe that starts from the teacher's
weights, for evaluation only."""

from __future__ import annotations

from rl_core.algorithms.distillation import teachers_of
from rl_core.errors import RecipeError
from schemas.recipe import Recipe
from schemas.sections.checks.quantization import in_full_precision

TEACHER = "teacher"
"""Label of the evaluation."""


def check_teacher_score(recipe: Recipe) -> None:
    """Check that a recipe with `evaluation.teacher` has the one teacher whose replies can be
    scored. Raises: RecipeError."""
    if recipe.evaluation.teacher:
        _path(recipe)


def as_teacher(recipe: Recipe) -> Recipe:
    """Return the recipe with the teacher's weights in place of the student's, and none to train.
    Raises: RecipeError where there is no such version."""
    # Here, since it imports torch, and every recipe is checked above.
    from rl_core.trainers.distillation.teaching import located_teacher

    source = located_teacher("algorithm.teacher.path", _path(recipe))
    return recipe.model_copy(
        update={
            "model": in_full_precision(recipe.model).model_copy(update={"path": source}),
            # Another algorithm, or the teacher would be loaded a second time.
            "algorithm": {"name": "grpo"},
            **dict.fromkeys(("lora", "ema_lora", "ema_full")),
        }
    )


def share_of_gain(before: float, teacher: float, after: float) -> str | None:
    """Return which share of the way from a score before training to the teacher's was gone; None
    if the teacher is no better."""
    if teacher <= before:
        return None
    share = (after - before) / (teacher - before)
    return f"{share:.0%} of the gain from {before:.3f} to its {teacher:.3f}"


def _path(recipe: Recipe) -> str:
    teachers = teachers_of(recipe)
    path = teachers["teacher"].path if list(teachers) == ["teacher"] else None
    if path is None:
        said = ", ".join(f"{key}: {one.name}" for key, one in teachers.items()) or "none"
        raise RecipeError(
            f"evaluation.teacher scores the one teacher that algorithm.teacher names by its path; "
            f"the recipe's teachers: {said}"
        )
    return path
