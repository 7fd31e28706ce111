"""The plan of one recipe for `rl-train run --dry-run`: the resolved recipe, the cache, the devices
and the memory, without running anything."""

from pathlib import Path

from flows.console import Console
from rl_core.data.check.files import NUM_EXAMPLES
from rl_core.data.check.first_rows import NUM_ROWS, check_first_rows
from rl_core.data.overlap.found import REASON, first_overlaps, refusal
from rl_core.data.prepare.media_prompts import MediaSettings, plan_media
from rl_core.data.prepare.pairs import plan_pairs
from rl_core.data.prepare.prompts import plan_cache
from rl_core.data.prepare.row_files import (
    SplitFiles,
    check_files_exist,
    compared_rows,
    rows_that_are_here,
)
from rl_core.data.read.media_prompt_files import planned_prompt_files
from rl_core.data.read.recipe_files import (
    check_settings,
    contamination_of,
    planned_benchmarks,
    planned_sources,
    preparation_settings,
)
from rl_core.envs.agent import check_rollouts_of_agents
from rl_core.envs.turns import of_several_turns
from rl_core.errors import DataError
from rl_core.models.checks.can_train import check_local_model
from rl_core.models.locate import check_models, model_shape, tokenizer_identity
from rl_core.models.model_path import check_path
from rl_core.runtime.home import Home
from rl_core.train.sharding.memory import estimate_memory, unknown_sizes
from schemas.recipe import Recipe
from schemas.rows.contract import SchemaName
from schemas.sections.training import ContaminationPolicy


def print_plan(
    settings: Recipe, written: str, beside: Path, console: Console, *, cache: str | None = None
) -> None:
    """Print the plan of a run.

    Args: written: the resolved recipe as it is shown. beside: folder of the recipe's file. cache:
    what is said of the cache in place of its plan, for one that depends on a model to come.
    Raises: ModelError when its model cannot be trained that way, or is neither here nor can be
    fetched; DataError when its rows cannot.
    """
    home = Home.default()
    check_local_model(settings, home.models)
    console.say(written)
    check_turns(settings, home)
    check_files_exist(settings, home, beside)
    with_files = located_artifacts(settings, home)
    for title, text in (
        ("rows", rows_plan(with_files, home)),
        ("cache", cache or cache_plan(with_files, home)),
        ("devices", device_plan(settings)),
        ("memory", memory_plan(settings, home)),
    ):
        console.say(f"{title}  {text}")
    check_models(settings, home.models)


def check_turns(recipe: Recipe, home: Home) -> None:
    """Check that the chat template of the model, if that is on this machine, supports the recipe's
    environments.

    Raises: ModelError; RecipeError when an agent cannot do what the recipe asks for.
    """
    if recipe.domain.traits.rows is not SchemaName.PROMPT:
        return
    check_rollouts_of_agents(
        recipe.environments,
        extra_prompts=recipe.rollout.extra_prompts,
        continuous=recipe.rollout.episodes.continuous,
    )
    several = of_several_turns(recipe.environments, recipe.data.default_env_class)
    if several and model_shape(recipe.model.path, home.models) is not None:
        # Here, since a plan for environments of one turn needs no transformers and is to be quick.
        from rl_core.rollout.episodes.several_turns import check_recipe

        check_recipe(recipe, check_path(recipe.model.path, home.models), several)


def located_artifacts(recipe: Recipe, home: Home) -> Recipe:
    """Return the recipe with the paths of the artifacts that its data names."""
    sets = [one.data for one in recipe.evaluation.sets.values()]
    rows = [recipe.data.train, recipe.data.eval, recipe.validation.benchmarks, *sets]
    if "art://" not in str(rows):
        return recipe
    from rl_core.tracking.artifacts import with_artifacts

    return Recipe.model_validate(with_artifacts(recipe.model_dump(mode="json"), home.mlflow_uri))


def rows_plan(recipe: Recipe, home: Home) -> str:
    """Say whether the first rows of the files that are here are good.

    Raises: DataError when one is not and the run would end on it.
    """
    train, held_out = rows_that_are_here(recipe, home)
    if not train and not held_out:
        return "not here yet; the run checks them"
    num_rows, problems = check_first_rows(train, check_settings(recipe), held_out)
    repeated = contamination_plan(recipe, home, (train, held_out))
    bad = len({(one.file, one.row) for one in problems})
    if not bad:
        return f"the first {num_rows} are good{repeated}"
    found = f"{bad} of the first {num_rows} rows would be refused\n" + "\n".join(
        f"  {one}" for one in problems[:NUM_EXAMPLES]
    )
    if recipe.data.on_invalid == "fail" or bad == num_rows:
        raise DataError(found)
    return found + repeated


def contamination_plan(recipe: Recipe, home: Home, files: SplitFiles) -> str:
    """Say which of the first training rows repeat held-out rows or rows of benchmarks that are
    here.

    Raises: DataError when the run would end on one.
    """
    contamination = contamination_of(recipe, home.data, make=False)
    train, measured = compared_rows(recipe, home, files, contamination, make=False)
    found = first_overlaps(train, measured, NUM_ROWS)
    if not found:
        return ""
    policy = contamination.policy
    if policy is ContaminationPolicy.FAIL:
        raise refusal(len({(one.file, one.row) for one in found}), found)
    asked = [one for one in found if one.verbatim and not one.benchmark]
    refused = asked and policy is ContaminationPolicy.REPORT and not recipe.has_pairs
    if refused and recipe.data.on_invalid == "fail":
        raise DataError(
            f"{asked[0].file}:{asked[0].row} field prompt: {REASON}; expected a question that is "
            f"not in {asked[0].other_file}:{asked[0].other_row}"
        )
    listed = "\n".join(f"  {one}" for one in found[:NUM_EXAMPLES])
    return f"; {len(found)} repeat rows that are measured on ({policy})\n{listed}"


def cache_plan(recipe: Recipe, home: Home) -> str:
    """Say whether preparation would be a cache hit, and why."""
    contamination = contamination_of(recipe, home.data, make=False)
    first_of_all = planned_benchmarks(recipe, home.data)[1]
    if first_of_all and contamination.policy is ContaminationPolicy.DROP:
        return f"miss: {first_of_all}"
    if recipe.has_pairs:
        plan = plan_pairs(recipe, home.data, home.cache, contamination)
        return f"{'hit' if plan.hit else 'miss'}: {plan.explanation}"
    if recipe.draws:
        return _media_plan(recipe, home)
    of_sets = [entry for one in recipe.evaluation.sets.values() for entry in one.data]
    (train, first), (held_out, second), (others, third) = (
        planned_sources(entries, home.data, recipe.data.column_map)
        for entries in (recipe.data.train, recipe.data.eval, of_sets)
    )
    if first or second or third:
        return f"miss: {first or second or third}"
    plan = plan_cache(
        train,
        held_out,
        preparation_settings(
            recipe, home, tokenizer_identity(recipe.model.path, home.models), make=False
        ),
        others,
    )
    return f"{'hit' if plan.hit else 'miss'}: {plan.explanation}"


def _media_plan(recipe: Recipe, home: Home) -> str:
    files, first = planned_prompt_files(recipe, home.data)
    if first:
        return f"miss: {first}"
    tokenizer_id = tokenizer_identity(recipe.model.path, home.models)
    memo_dir = home.data / "memo"
    contamination = contamination_of(recipe, home.data, make=False)
    settings = MediaSettings(recipe, tokenizer_id, home.cache, memo_dir, contamination)
    plan = plan_media(files, settings)
    return f"{'hit' if plan.hit else 'miss'}: {plan.explanation}"


def device_plan(recipe: Recipe) -> str:
    """Describe workers, ranks and batches."""
    placement, rows = recipe.placement, recipe.training.prompts_per_step * recipe.rows_per_prompt
    where = placement.ray_address or "a private Ray cluster"
    sizes = {
        "weights": placement.tp_size,
        "sequences": placement.sp_size,
        "experts": placement.ep_size,
    }
    shared = "".join(f", {size} share {what}" for what, size in sizes.items() if size > 1)
    parts = {"sample": placement.rollout_devices, "draw": recipe.drawing_devices}
    alone = "".join(f", {devices} only {does}" for does, devices in parts.items() if devices)
    if recipe.joined_devices:
        alone += f" ({recipe.joined_devices[0]} to a server)"
    return (
        f"{placement.num_devices} {placement.device} worker(s){alone}{shared} on {where}; {rows} "
        f"rows a step, {rows // recipe.writing.placement.num_replicas} a replica, in "
        f"micro-batches of {placement.micro_batch_size or 'a size that suits the processor'}"
    )


def memory_plan(recipe: Recipe, home: Home) -> str:
    """Estimate the bytes per worker."""
    if recipe.draws:
        return "not estimated for diffusion models"
    shape = model_shape(recipe.model.path, home.models)
    if shape is None:
        return f"unknown until the model's config is on this machine ({recipe.model.path})"
    if unknown := unknown_sizes(shape):
        return f"unknown: the model's config.json says nothing of {', '.join(unknown)}"
    parts = estimate_memory(recipe, shape)
    listed = ", ".join(f"{name} {size / 2**30:.2f}" for name, size in parts.items())
    return f"about {sum(parts.values()) / 2**30:.2f} GiB a worker ({listed})"
