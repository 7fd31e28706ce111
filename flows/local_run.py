"""`rl-train run` and `eval`: a flow in this process, with a display of what happens."""

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from rl_core.orphans import no_orphans
from rl_core.recipes import load_recipe
from schemas.receipts import EvalReceipt, ModelReceipt

if TYPE_CHECKING:
    from flows.display import Display
    from schemas.recipe import Recipe


def run_locally(recipe: str, overrides: Sequence[str], profile: str | None, *, fresh: bool, debug: bool) -> None:
    """Check the recipe, then run the flow with a live display and print a summary."""
    settings = load_recipe(recipe, overrides, profile)
    with _displayed(settings, debug) as display:
        from flows.rl_train import rl_train

        receipt = rl_train(recipe, list(overrides), profile, fresh)
    assert isinstance(receipt, ModelReceipt)  # only a retraining may find nothing to do
    display.summary(receipt)


def evaluate_locally(
    model: str, recipe: str | None, overrides: Sequence[str], profile: str | None, *, debug: bool
) -> None:
    """Find model and recipe, then run the flow with a live display and say what it measured."""
    from rl_core.home import Home
    from rl_core.trainers.evaluation import evaluation_recipe, find_candidate

    candidate = find_candidate(model, home := Home.default())
    settings = evaluation_recipe(candidate, recipe, overrides, profile, home)
    with _displayed(settings, debug) as display:
        from flows.rl_evaluate import rl_evaluate

        receipt = rl_evaluate(model, recipe, list(overrides), profile)
    assert isinstance(receipt, EvalReceipt)
    display.evaluation(candidate.name, receipt, candidate.recorded(receipt))


@contextmanager
def _displayed(recipe: "Recipe", debug: bool) -> "Iterator[Display]":
    """A display for what happens in the block, which ends in an orderly way on Ctrl-C and SIGTERM."""
    if not debug:
        # The API keeps the whole log; the console shows the display instead.
        os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        os.environ.setdefault("TQDM_DISABLE", "1")
    from flows.display import Display

    for ending in (signal.SIGTERM, signal.SIGINT):
        signal.signal(ending, _interrupt)
    with no_orphans(), Display(recipe) as display:
        display.note("starting the Prefect API")
        yield display


def _interrupt(signum: int, frame: FrameType | None) -> None:
    """End in an orderly way: workers, cluster and API server end with the run."""
    raise KeyboardInterrupt
