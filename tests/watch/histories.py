"""Made metrics of runs, healthy and sick."""

from collections.abc import Iterable

from rl_core.runs.recipes import load_recipe
from rl_core.watch.watch import Watch
from rl_core.watch.watcher import Alarm
from schemas.recipe import Recipe

HEALTHY = {
    **{"reward_mean": 0.5, "reward_std": 0.4, "response_length_mean": 100.0},
    **{"truncated_share": 0.05, "num_groups": 8.0, "zero_std_groups": 2.0},
    **{"zero_advantage_share": 0.25, "approx_kl": 0.01, "clip_fraction": 0.05, "entropy": 1.0},
    **{"delta_log_prob_mean": 0.01, "grad_norm": 0.3, "skipped_steps": 0.0},
    **{"peak_memory_gb": 3.0, "reward/environment/mean": 0.5},
}
"""One step of a run that is well."""


def history(num_steps: int = 20, **changed: Iterable[float]) -> list[dict[str, float]]:
    """Return a run that is well but for some metrics. Args: changed: values by step; the last of
    them stays."""
    listed = {name: list(values) for name, values in changed.items()}
    steps = []
    for step in range(num_steps):
        own = {name: values[min(step, len(values) - 1)] for name, values in listed.items()}
        steps.append({"step": step + 1.0, **HEALTHY, **own})
    return steps


def alarms(steps: list[dict[str, float]], *overrides: str, recipe: str = "text") -> list[Alarm]:
    return Watch(recipe_of(*overrides, recipe=recipe), steps).alarms


def recipe_of(*overrides: str, recipe: str = "text") -> Recipe:
    return load_recipe(recipe, overrides)
