"""The two models of the demo, and their questions and answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

from rl_core.demo.questions import Answer, Question
from rl_core.errors import ModelError, RecipeError
from rl_core.runs.evaluation import Candidate, evaluation_recipe, find_candidate
from rl_core.runs.versions.served_weights import weights_of
from rl_core.runtime.home import Home
from rl_core.tracking.model_versions import newest
from schemas.domains import TRAITS, Page
from schemas.recipe import Recipe

MAX_NEW_TOKENS = 512
"""Upper limit on the length of a reply in tokens."""
MAX_TEMPERATURE = 5.0
"""Highest temperature that the page takes."""


class Contestant:
    """A model that answers one question at a time."""

    def __init__(self, name: str, answer: Callable[[Question], Answer]) -> None:
        self.name, self._answer = name, answer
        self._lock = Lock()

    def ask(self, question: Question) -> Answer:
        """Return the model's answer; other calls wait in the meantime."""
        with self._lock:
            return self._answer(question)


@dataclass(frozen=True)
class Demo:
    """Models and task of the demo."""

    page: Page
    contestants: list[Contestant]
    max_new_tokens: int
    temperature: float = 0.0
    """Temperature that the page begins with."""


def load_demo(
    model: str, against: str | None, recipe_name: str | None, device: str, home: Home
) -> Demo:
    """Load both models.

    Args: against: as `model`; unset takes the newest version of the same name, or the initial
    weights of the training. Raises: RecipeError when the domain has no page; ModelError and
    StorageError when a model does not exist.
    """
    first = find_candidate(model, home)
    recipe = evaluation_recipe(first, recipe_name, (), None, home)
    page = recipe.domain.traits.page
    if page is None:
        served = ", ".join(domain for domain, traits in TRAITS.items() if traits.page is not None)
        raise RecipeError(
            f"{first.name}: there is no page for the domain {recipe.domain}; it serves {served}"
        )
    second = find_candidate(against, home) if against else rival(first, recipe, home)
    contestants = []
    for one in (first, second):
        contestants.append(Contestant(one.name, _load(page, one, recipe, device, home)))
    evaluation = recipe.evaluation
    limit = min(evaluation.max_new_tokens, MAX_NEW_TOKENS)
    return Demo(page, contestants, limit, min(evaluation.temperature, MAX_TEMPERATURE))


def rival(first: Candidate, recipe: Recipe, home: Home) -> Candidate:
    """Return the newest version of the same name, if it is another one, else the initial weights of
    the training."""
    if first.version is not None:
        last = newest(home.mlflow_uri, first.version.name)
        if last is not None and last.version != first.version.version:
            return find_candidate(f"models:/{last.name}/{last.version}", home)
    return Candidate(f"before training ({recipe.model.path})", recipe.model.path)


def _load(
    page: Page, one: Candidate, recipe: Recipe, device: str, home: Home
) -> Callable[[Question], Answer]:
    source = weights_of(one, home)
    if page is Page.DRAW:
        from rl_core.demo.painter import Painter

        return Painter(source, recipe, device).answer
    from rl_core.demo.speaker import Speaker
    from rl_core.models.family import sees_pictures

    if sees_pictures(source):
        raise ModelError(f"{one.name} answers questions about pictures; the page has text alone")
    return Speaker(source, recipe, device).answer
