"""A distance between rollout and trainer that is no rounding warns, and then ends the run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from rl_core.errors import ModelError, UserError
from rl_core.trainers.domains.text import TextTrainer
from rl_core.trainers.metrics.drift import check_delta, delta_limit, watch_delta
from rl_core.trainers.progress import ProgressEvent
from tests.rollout.built import built
from tests.rollout.vowels import DEDICATED, ITEMS, recipe


def metrics(mean: float, most: float = 1.0) -> dict[str, float]:
    return {"delta_log_prob_mean": mean, "delta_log_prob_max": most}


def test_rounding_is_no_news_and_more_is_a_warning_and_then_the_end() -> None:
    assert check_delta(metrics(0.04), 0.1, 16, 3) is None
    warning = check_delta(metrics(0.06), 0.1, 16, 3)
    assert warning is not None and warning.startswith("step 3: ") and "0.06 in the mean" in warning
    assert "the mean is above 50% of its limit of 0.1 (rollout.max_delta_log_prob)" in warning
    with pytest.raises(
        ModelError,
        match=r"step 3: .*0\.11 in the mean, 1 at most; the limit of the mean is 0\.1 \(rollout",
    ) as caught:
        check_delta(metrics(0.11), 0.1, 16, 3)
    assert isinstance(caught.value, UserError), "nothing is tried again"
    with pytest.raises(ModelError):
        check_delta(metrics(math.nan, 2.0), 0.1, 16, 3)


def test_exactly_the_limit_is_within_it_and_half_of_it_is_no_news() -> None:
    assert check_delta(metrics(0.5), 1.0, 16, 3) is None
    assert check_delta(metrics(math.nextafter(0.5, 1)), 1.0, 16, 3) is not None
    assert check_delta(metrics(1.0), 1.0, 16, 3) is not None
    with pytest.raises(ModelError):
        check_delta(metrics(math.nextafter(1.0, 2)), 1.0, 16, 3)


def test_a_mean_of_few_rows_may_exceed_the_limit_by_chance() -> None:
    scattered = metrics(0.12) | {"delta_log_prob_square": 0.04}
    warning = check_delta(scattered, 0.1, 16, 3)
    assert warning is not None and "0.12 in the mean" in warning
    assert "above its limit of 0.1" in warning and "chance explains in 16 rows" in warning
    with pytest.raises(ModelError):
        check_delta(scattered, 0.1, 1000, 3)
    with pytest.raises(ModelError):
        check_delta(metrics(0.3) | {"delta_log_prob_square": 0.1}, 0.1, 16, 3)


def test_a_warning_is_announced_with_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[ProgressEvent] = []
    monkeypatch.setattr("rl_core.trainers.progress.listeners", [heard.append])
    watch_delta(metrics(0.04), 0.1, 16, 3, 9)
    assert heard == []
    watch_delta(metrics(0.06), 0.1, 16, 3, 9)
    (event,) = heard
    assert (event.phase, event.step, event.total_steps) == ("note", 3, 9)
    assert event.text == check_delta(metrics(0.06), 0.1, 16, 3)


def test_nothing_is_said_of_a_step_that_trained_nothing_or_has_no_limit() -> None:
    assert check_delta(metrics(math.nan, math.nan), 0.1, 16, 1) is None
    assert check_delta({}, 0.1, 16, 1) is None
    assert check_delta(metrics(5.0), None, 16, 1) is None


def test_limits_follow_format_and_engine(tmp_path: Path) -> None:
    def limit(**changes: Any) -> float | None:
        return delta_limit(recipe(tmp_path, **changes))

    in_process = {"dedicated": False}
    assert limit(**in_process, fsdp={"param_dtype": "float32"}) == 0.01
    assert limit(**in_process, fsdp={"param_dtype": "bfloat16"}) == 0.1
    assert limit(fsdp={"param_dtype": "bfloat16"}) == 0.2
    assert limit(rollout={"max_delta_log_prob": 3.0}) == 3.0
    # In float32 a dedicated engine computes as the trainer does; vLLM has kernels of its own.
    exact = {"fsdp": {"param_dtype": "float32"}}
    assert limit(rollout={"sync": {"dtype": "float32"}}, **exact) == 0.01
    vllm = {"engine": "vllm", "sync": {"dtype": "float32"}}
    assert limit(**in_process, rollout=vllm, placement=DEDICATED["placement"], **exact) == 0.2


def test_rollouts_of_other_weights_than_the_trained_ones_have_no_limit(tmp_path: Path) -> None:
    """Steps ahead sample older weights, an average other ones; what differs is not rounding."""
    assert delta_limit(recipe(tmp_path, rollout={"steps_ahead": 1})) is None
    averaged = {"decay": 0.5, "mirror": True, "rollout": True}
    assert delta_limit(recipe(tmp_path, ema_full=averaged)) is None
    assert delta_limit(recipe(tmp_path, ema_full=averaged | {"rollout": False})) is not None
    told = recipe(tmp_path, ema_full=averaged, rollout={"max_delta_log_prob": 3.0})
    assert delta_limit(told) == 3.0, "what the recipe says holds"


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_a_rollout_that_says_something_else_ends_the_run(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rollout and trainer disagree by rounding, which a tiny limit takes for a fault."""
    settings = recipe(tiny_model_dir, rollout={"max_delta_log_prob": 1e-9})
    assert DEDICATED
    with (
        built(TextTrainer(settings, settings.model.path, ITEMS)) as trainer,
        pytest.raises(ModelError, match="step 1: "),
    ):
        trainer.step()
