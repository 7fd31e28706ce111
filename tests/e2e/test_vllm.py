"""Recipes through the whole flow, sampled by vLLM: the same learning, and nothing left behind."""

from pathlib import Path

import pytest
import yaml

from rl_core.runs.rollouts.orders import orders_of
from tests.command import rl_train
from tests.e2e.conftest import undisturbed_run
from tests.e2e.outcomes import logged_metrics
from tests.rollout.test_vllm_pictures import LookAgainEnv
from tests.rollout.vllm_parts import INTERPRETER, MISSING, TOLERANCE

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.skipif(not INTERPRETER.is_file(), reason=MISSING),
]

VLLM = (
    "rollout.engine=vllm",
    "rollout.vllm.kv_cache_gib=1",
    "placement.threads_per_device=1",
)
WAYS = {
    "one device": ("placement.num_devices=2", "placement.rollout_devices=1"),
    # As many as divide the nine heads of the model.
    "adapters on three": (
        "placement.num_devices=4",
        "placement.rollout_devices=3",
        "rollout.vllm.tensor_parallel_size=3",
        "rollout.sync.mode=adapter",
    ),
}
# Both sides compute in bfloat16, where a logit near 16 is a multiple of 1/8; in float32 they agree
# (tests/rollout).
MEAN_TOLERANCE, MAX_TOLERANCE = 0.1, 1.0


@pytest.mark.parametrize("way", WAYS)
def test_a_recipe_trains_on_what_vllm_samples(tmp_path: Path, way: str) -> None:
    with undisturbed_run(Path("smoke/text"), tmp_path, *VLLM, *WAYS[way]):
        metrics = logged_metrics(tmp_path)
    # A step whose groups are all equal trains nothing: it has no distance, and no gradient.
    num_trained = sum(value > 0 for value in metrics["grad_norm"])
    assert num_trained
    for name, tolerance in (
        ("delta_log_prob_mean", MEAN_TOLERANCE),
        ("delta_log_prob_max", MAX_TOLERANCE),
    ):
        assert len(metrics[name]) == num_trained
        assert all(0.0 < value < tolerance for value in metrics[name]), (name, metrics[name])


def test_replies_of_a_recipe_go_on_with_newer_weights(tmp_path: Path) -> None:
    ahead = ("rollout.steps_ahead=2", "rollout.in_flight=true", "rollout.tokens_per_request=2")
    longer = ("rollout.max_new_tokens=24", "training.steps_per_iteration=4")
    corrected = "algorithm.correction={level: token, upper: 2.0}"
    given = (*VLLM, *WAYS["one device"], *ahead, *longer, corrected)
    with undisturbed_run(Path("smoke/text"), tmp_path, *given):
        metrics = logged_metrics(tmp_path)
        (run,) = (tmp_path / "runs").glob("smoke-text-*")
        assert orders_of(run), "no rollout took newer weights"
    assert max(metrics["staleness_max"]) <= 2
    # Tokens of one reply are of several versions.
    assert any(age % 1 for age in metrics["staleness_mean"])
    copy = str(tmp_path / "again")
    again = rl_train(tmp_path, "reproduce", "rl-train-smoke-text", "1", "--to", copy, "--run")
    assert again.returncode == 0, again.stdout + again.stderr
    assert "the weights are the same, bit for bit" in again.stdout


def test_a_recipe_with_pictures_trains_on_what_vllm_sees(
    tiny_vlm_dir: Path, tmp_path: Path
) -> None:
    values = {
        "name": "look-again",
        "domain": "vision",
        "model": {"path": str(tiny_vlm_dir), "frozen": []},
        "fsdp": {"param_dtype": "float32"},
        "data": {
            "train": [{"pictures": 12, "seed": 1}],
            "eval": [{"pictures": 4, "seed": 2}],
            "max_prompt_length": 128,
            "default_env_class": "look_again",
        },
        "environments": {"look_again": {"target": f"{LookAgainEnv.__module__}:LookAgainEnv"}},
        "algorithm": {"name": "grpo"},
        "rollout": {
            "samples_per_prompt": 4,
            "max_new_tokens": 6,
            "max_context_length": 400,
            "sync": {"dtype": "float32"},
        },
        "training": {"num_iterations": 2, "steps_per_iteration": 2, "prompts_per_step": 2},
        "evaluation": {"max_new_tokens": 6},
    }
    recipe, home = tmp_path / "recipe.yaml", tmp_path / "home"
    recipe.write_text(yaml.safe_dump(values))
    with undisturbed_run(recipe, home, *VLLM, *WAYS["one device"]):
        distances = logged_metrics(home)["delta_log_prob_max"]
    assert len(distances) == 4
    assert max(distances) < TOLERANCE, "the trainer saw other pictures than vLLM"
