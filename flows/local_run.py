"""`rl-train run`: the flow in this process, with a display of what happens."""

import os
import signal
from collections.abc import Sequence
from types import FrameType

from rl_core.orphans import no_orphans
from rl_core.recipes import load_recipe
from schemas.receipts import ModelReceipt


def run_locally(recipe: str, overrides: Sequence[str], profile: str | None, *, fresh: bool, debug: bool) -> None:
    """Check the recipe, then run the flow with a live display and print a summary."""
    settings = load_recipe(recipe, overrides, profile)
    if not debug:
        # The API keeps the whole log; the console shows the display instead.
        os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        os.environ.setdefault("TQDM_DISABLE", "1")
    from flows.display import Display

    for ending in (signal.SIGTERM, signal.SIGINT):
        signal.signal(ending, _interrupt)
    with no_orphans(), Display(settings) as display:
        display.note("starting the Prefect API")
        from flows.rl_train import rl_train

        receipt = rl_train(recipe, list(overrides), profile, fresh)
    assert isinstance(receipt, ModelReceipt)  # only a retraining may find nothing to do
    display.summary(receipt)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    """End in an orderly way: workers, cluster and API server end with the run."""
    raise KeyboardInterrupt
