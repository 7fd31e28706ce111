"""Weights of a model that answers questions: those of the endpoint and of the demo page."""

from __future__ import annotations

from dataclasses import dataclass

from rl_core.errors import ModelError
from rl_core.models.locate import locate
from rl_core.runs.evaluation import Candidate, evaluation_recipe, find_candidate
from rl_core.runs.versions.iterations import export_iteration
from rl_core.runtime.home import Home
from schemas.domains import Page
from schemas.sections.checks.quantization import in_full_precision
from schemas.sections.policy import ExportKind, ModelConfig


def weights_of(candidate: Candidate, home: Home) -> str:
    """Return the folder or hub id of a candidate's weights; those of a run's iteration are written
    first, once.

    Raises: ModelError when it is behind a server; StorageError, ExportMismatch.
    """
    if candidate.weights is None:
        raise ModelError(f"{candidate.name} has no weights here; name a version or a folder")
    if candidate.iteration is not None:
        export_iteration(
            candidate.iteration, home, candidate.iteration.export, kind=ExportKind.MERGED
        )
    return locate(candidate.weights, home.models)


@dataclass(frozen=True)
class Served:
    """A language model to serve."""

    name: str
    source: str
    """Result of `locate`."""
    config: ModelConfig
    """Attention and chat template of its training."""


def find_served(model: str, recipe: str | None, home: Home) -> Served:
    """Find a language model by `models:/NAME@champion`, `RUN@12`, or as `model.path`.

    Args: recipe: of a model that is no registered version; None for the defaults. Raises:
    RecipeError, ModelError, StorageError.
    """
    candidate = find_candidate(model, home)
    has_recipe = candidate.version is not None or candidate.iteration is not None
    config = ModelConfig(path=candidate.weights or model)
    if has_recipe or recipe is not None:
        found = evaluation_recipe(candidate, recipe, (), None, home)
        if found.domain.traits.page is Page.DRAW:
            raise ModelError(f"{candidate.name} draws pictures; only language models are served")
        config = in_full_precision(found.model)
    return Served(candidate.name, weights_of(candidate, home), config)
