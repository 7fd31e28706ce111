"""The task prepare-cache: write validated rows to a content-addressed folder; unchanged inputs are
a cache hit."""

from dataclasses import replace
from functools import cache
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.tasks import exponential_backoff

from rl_core.data.prepare import prompts
from rl_core.data.prepare.media_prompts import MediaSettings, PromptCounter, prepare_media
from rl_core.data.prepare.pairs import prepare_pairs
from rl_core.data.prepare.row_files import set_files
from rl_core.data.prepare.sets import prepare_set
from rl_core.data.read.media_prompt_files import prompt_files
from rl_core.data.read.recipe_files import (
    contamination_of,
    preparation_settings,
    resolve_sources,
)
from rl_core.envs.agent import check_rollouts_of_agents
from rl_core.envs.turns import of_several_turns
from rl_core.models.locate import locate, tokenizer_identity
from rl_core.rollout.chat.vision import prompt_tokenizer
from rl_core.rollout.diffusion.rewriting import QuestionLengths
from rl_core.rollout.episodes.several_turns import check_recipe
from rl_core.runtime.home import Home
from rl_core.tracking.artifacts import with_artifacts
from rl_core.trainers.progress import ProgressEvent, announce
from schemas.domains import ModelKind
from schemas.receipts import CacheReceipt, ValidationReport
from schemas.recipe import Recipe
from tasks.prefect_ui import artifacts
from tasks.retrying import worth_retrying


# The run hash over file contents decides about reuse; Prefect's own cache sees only the recipe's
# text.
@task(
    name="prepare-cache",
    cache_policy=NO_CACHE,
    retries=2,
    retry_delay_seconds=exponential_backoff(2),
    retry_condition_fn=worth_retrying,
)
def prepare_cache(recipe: dict[str, Any], report: ValidationReport) -> CacheReceipt:
    """Publish train.parquet and eval.parquet of a recipe's data. Raises: DataError, ModelError."""
    home = Home.default()
    settings = Recipe.model_validate(with_artifacts(recipe, home.mlflow_uri))
    if settings.has_pairs:
        receipt = prepare_pairs(
            settings, home.data, home.cache, contamination_of(settings, home.data)
        )
    elif settings.draws:
        receipt = _prepare_media(settings, home)
    else:
        receipt = _prepare_prompts(settings, home)
    announce(ProgressEvent("done", receipt=receipt))
    _publish(receipt)
    return receipt


def _prepare_prompts(recipe: Recipe, home: Home) -> CacheReceipt:
    """Tokenise prompts and filter them by length."""
    check_rollouts_of_agents(
        recipe.environments,
        extra_prompts=recipe.rollout.extra_prompts,
        continuous=recipe.rollout.episodes.continuous,
    )
    if several := of_several_turns(recipe.environments, recipe.data.default_env_class):
        check_recipe(recipe, locate(recipe.model.path, home.models, merged=False), several)
    settings = preparation_settings(
        recipe, home, tokenizer_identity(recipe.model.path, home.models)
    )
    tokenizer = cache(
        lambda: prompt_tokenizer(
            locate(recipe.model.path, home.models, merged=False),
            text_alone=recipe.domain.traits.model is ModelKind.TEXT,
        )
    )
    sets = set_files(recipe, home)
    receipt = prompts.prepare_cache(
        resolve_sources(recipe.data.train, home.data, recipe.data.column_map),
        resolve_sources(recipe.data.eval, home.data, recipe.data.column_map),
        settings,
        tokenizer=tokenizer,
        also_held_out=[file for files in sets.values() for file in files],
    )
    of_sets = replace(settings, name=f"{recipe.name}-set", needs_answers=False)
    made = {}
    for name, files in sets.items():
        made[name] = prepare_set(name, files, of_sets, tokenizer)
    return receipt.model_copy(update={"sets": made})


def _prepare_media(recipe: Recipe, home: Home) -> CacheReceipt:
    """Filter media prompts by length, counted with the tokenizers of the model that reads them
    first."""
    path = recipe.model.path
    settings = MediaSettings(
        recipe,
        tokenizer_identity(path, home.models),
        home.cache,
        home.data / "memo",
        contamination_of(recipe, home.data),
    )
    files = prompt_files(recipe, home.data)
    return prepare_media(
        files, settings, lambda: _counter(recipe, locate(path, home.models, merged=False))
    )


def _counter(recipe: Recipe, source: str) -> PromptCounter:
    from rl_core.models.chat.tokenizer import load_tokenizer
    from rl_core.models.diffusion.prompt_lengths import PromptLengths
    from rl_core.models.unified.bundle import plan_tokenizer

    if recipe.unified is not None:
        return QuestionLengths(plan_tokenizer(source, recipe.model))
    if recipe.tracks is not None:
        return QuestionLengths(load_tokenizer(source))
    return PromptLengths(source, recipe.model.path)


def _publish(receipt: CacheReceipt) -> None:
    rows: list[dict[str, object]] = [
        {"what": "outcome", "value": "hit" if receipt.hit else "built"},
        {"what": "why", "value": receipt.explanation},
        {"what": "run hash", "value": receipt.run_hash},
        {"what": "folder", "value": receipt.path},
        {"what": "training rows", "value": receipt.num_train_rows},
        {"what": "held-out rows", "value": receipt.num_eval_rows},
        *(
            {"what": f"dropped: {reason}", "value": count}
            for reason, count in receipt.dropped.items()
        ),
        *(
            {"what": f"rows of the set {name}", "value": one.num_rows}
            for name, one in receipt.sets.items()
        ),
        *({"what": f"source {source.path}", "value": source.sha256} for source in receipt.sources),
    ]
    artifacts.table("cache", rows, "The prepared data and what it was made from")
