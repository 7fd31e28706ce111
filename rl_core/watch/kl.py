"""A jump of the KL between the policy and the one that sampled, or its reference.

Implementations of PPO stop their updates where the KL exceeds 1.5 times a target of 0.01 to 0.05
nats (Spinning Up; Stable-Baselines3's `target_kl`). A policy gradient with one update has no such
brake, so a jump is compared with the run's own steps; factor and floor are our choice.
"""

from statistics import median

from rl_core.watch.view import View
from rl_core.watch.watcher import Rows, Watcher

NAMES = ("approx_kl", "kl_ref")
LEAST_BEFORE, WINDOW = 5, 20
FACTOR, FLOOR = 10.0, 0.1
"""Multiple of the median of the steps before, and nats per action, at which it fires."""


def look(view: View) -> str | None:
    """Return the KL of this step if it is far above that of the steps before."""
    for name in NAMES:
        curve = view.curve(name, LEAST_BEFORE + 1)
        if curve is None:
            continue
        before, now = curve.before(WINDOW), curve.values[-1]
        usual = median(before.values)
        if now >= FLOOR and now >= FACTOR * usual:
            return (
                f"{name} {now:.3g} nats per action in step {view.step}, {usual:.3g} in the median "
                f"of {before} (limit {FACTOR:g} times, from {FLOOR:g})"
            )
    return None


WATCHER = Watcher(
    name="kl",
    sign="`approx_kl` or `kl_ref` is ten times its usual value, and above 0.1 nats (after PPO's "
    "early stop by a target KL).",
    cause="an update was too large, often of a few samples with extreme rewards",
    advice="a lower `optimizer.learning_rate`, fewer `training.num_epochs` or "
    "`training.num_updates_per_batch`, a lower `training.max_grad_norm`, or `algorithm.kl.coef`",
    look=look,
    rows=Rows.DELTA,
)
