"""The commands `rl-train run` and `eval`: a flow in this process, with a live display."""

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from flows.local_api import LocalApi, start_local_api
from flows.prefect_settings import check_prefect_settings
from flows.sweep.grid import combinations
from rl_core.data.prepare.row_files import check_files_exist
from rl_core.distributed.cluster import configured_address, early_cluster
from rl_core.models.checks.can_train import check_local_model
from rl_core.models.locate import check_models
from rl_core.runs.chain.chains import LoadedChain, is_chain, load_chain
from rl_core.runs.recipes import find_recipe, load_recipe
from rl_core.runtime.child_reaper import no_orphans
from rl_core.runtime.fast_imports import fast_imports
from rl_core.runtime.home import Home
from rl_core.services.addresses import Server, check_addresses
from schemas.receipts import ChainReceipt, EvalReceipt, ModelReceipt

if TYPE_CHECKING:
    from flows.display import Display
    from schemas.recipe import Recipe


def run_locally(
    recipe: str,
    overrides: Sequence[str],
    profile: str | None,
    *,
    fresh: bool,
    debug: bool,
    quiet: bool = False,
) -> ModelReceipt | ChainReceipt:
    """Validate the recipe, then run the flow with a live display and print a summary.

    Args: quiet: print nothing but warnings.
    """
    chain = load_chain(recipe, overrides, profile) if is_chain(recipe) else None
    if chain is None:
        settings = load_recipe(recipe, overrides, profile)
        _check(settings, find_recipe(recipe).parent)
    else:
        settings = _check_stages(chain, profile)
    check_addresses(*Server, ray_address=settings.placement.ray_address)
    with _displayed(settings, debug, chain=chain, quiet=quiet) as (display, api):
        with fast_imports():
            from flows.chain_display import ChainDisplay
            from flows.rl_train import rl_train

        if api is not None:
            api.wait()
        receipt = rl_train(recipe, list(overrides), profile, fresh)
    if isinstance(receipt, ChainReceipt):
        assert isinstance(display, ChainDisplay)
        display.chain_summary(receipt)
        return receipt
    assert isinstance(receipt, ModelReceipt)  # only a retraining may find nothing to do
    display.summary(receipt)
    return receipt


def sweep_locally(
    recipe: str, assignments: Sequence[str], profile: str | None, *, debug: bool
) -> None:
    """Run the flow of a sweep with a live display, and print the comparison."""
    settings = [load_recipe(recipe, run, profile) for run in combinations(assignments)]
    for one in settings:
        _check(one, find_recipe(recipe).parent)
    check_addresses(*Server, ray_address=settings[0].placement.ray_address)
    widest = max(settings, key=lambda one: one.placement.num_devices)
    with _displayed(widest, debug) as (display, api):
        with fast_imports():
            from flows.sweep.flow import rl_sweep

        if api is not None:
            api.wait()
        page = rl_sweep(recipe, list(assignments), profile)
        display.console.say(f"compared: {page}")


def _check_stages(chain: LoadedChain, profile: str | None) -> "Recipe":
    """Check the recipes of all stages; return that with the most devices, for the cluster."""
    planned = []
    for stage in chain.stages:
        with chain.naming(stage):
            planned.append(chain.planned(stage, profile))
            _check(planned[-1], find_recipe(stage.source).parent)
    return max(planned, key=lambda recipe: recipe.placement.num_devices)


def _check(recipe: "Recipe", beside: Path | None) -> None:
    """Report a mistyped path, or a model that cannot be trained that way, before servers and a
    cluster start."""
    home = Home.default()
    check_models(recipe, home.models)
    check_local_model(recipe, home.models)
    check_files_exist(recipe, home, beside)


def evaluate_locally(
    model: str,
    recipe: str | None,
    overrides: Sequence[str],
    profile: str | None,
    served_model: str | None,
    *,
    debug: bool,
    quiet: bool = False,
) -> EvalReceipt:
    """Find model and recipe, then run the evaluation flow with a live display and print the
    scores.

    Args: quiet: print nothing but warnings.
    """
    with fast_imports():
        from rl_core.runs.evaluation import check_served, evaluation_recipe, find_candidate
        from rl_core.runs.run_plan import measuring

    check_addresses(Server.PREFECT, Server.MLFLOW)
    candidate = find_candidate(model, home := Home.default())
    settings = evaluation_recipe(candidate, recipe, overrides, profile, home)
    check_served(candidate, served_model, settings)
    named = None if recipe is None else find_recipe(recipe).parent
    # A server has no weights here, and those of an iteration are still to be exported.
    if candidate.url is None and candidate.iteration is None:
        _check(measuring(settings, candidate.weights), named)
    else:
        check_files_exist(settings, home, named)
    if candidate.url is None:
        check_addresses(Server.RAY, ray_address=settings.placement.ray_address)
    with _displayed(settings, debug, workers=candidate.url is None, quiet=quiet) as (display, api):
        with fast_imports():
            from flows.rl_evaluate import rl_evaluate

        if api is not None:
            api.wait()
        receipt = rl_evaluate(model, recipe, list(overrides), profile, served_model)
    assert isinstance(receipt, EvalReceipt)
    display.evaluation(candidate.name, receipt, candidate.recorded(receipt))
    return receipt


@contextmanager
def _displayed(
    recipe: "Recipe",
    debug: bool,
    *,
    workers: bool = True,
    chain: LoadedChain | None = None,
    quiet: bool = False,
) -> "Iterator[tuple[Display, LocalApi | None]]":
    """Show a live display during the block, which is `interruptible`.

    The Prefect API and the cluster start in the meantime, in CPU time that the imports of this
    process leave free. Args: workers: False if nothing needs the cluster. chain: the chain that
    is run; None for one recipe.
    """
    if not debug:
        # The API keeps the whole log; the console shows the display instead.
        os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        os.environ.setdefault("TQDM_DISABLE", "1")
    Home.default().check_writable()
    with no_orphans(), interruptible():
        api = start_local_api()
        with _cluster_of(recipe) if workers else nullcontext():
            with fast_imports():
                check_prefect_settings()
                from flows.chain_display import ChainDisplay
                from flows.display import Display

            with Display(recipe) if chain is None else ChainDisplay(chain) as display:
                display.console.quiet = quiet
                display.note("starting the Prefect API")
                yield display, api


def _cluster_of(recipe: "Recipe") -> AbstractContextManager[None]:
    placed = recipe.placement
    if configured_address(placed.ray_address) is not None:
        return nullcontext()
    return early_cluster(placed.num_devices, placed.device)


@contextmanager
def interruptible() -> Iterator[None]:
    """Shut down in an orderly way on Ctrl-C and SIGTERM: workers, cluster and API server end with
    the run.

    Raises: KeyboardInterrupt, also in place of another error: Prefect, interrupted while it sets up
    a task run, raises an error of its own.
    """
    if threading.current_thread() is threading.main_thread():  # Python's rule
        for ending in (signal.SIGTERM, signal.SIGINT):
            signal.signal(ending, _interrupt)
    try:
        yield
    except Exception as error:
        from tasks.retrying import came_of_a_signal

        if came_of_a_signal(error):
            raise KeyboardInterrupt from error
        raise


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
