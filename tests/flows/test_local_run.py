"""What a local run starts ahead of its flow."""

import pytest

from flows.local_run import _cluster_of, run_locally
from rl_core.errors import ModelError
from rl_core.runs.recipes import load_recipe


@pytest.mark.parametrize("variable", ["RL_TRAIN_RAY_ADDRESS", "RAY_ADDRESS"])
def test_no_cluster_of_its_own_takes_the_place_of_one_that_is_named(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import rl_core.distributed.cluster

    monkeypatch.setenv(variable, "192.0.2.1:6379")
    with _cluster_of(load_recipe("text", [], None)):
        assert rl_core.distributed.cluster._early is None, (
            "validation would run on it, and not where it was told to"
        )


@pytest.mark.parametrize("key", ["model.path", "tracks.images.model.path"])
def test_a_mistyped_model_is_named_before_anything_starts(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "flows.local_run.start_local_api", lambda: pytest.fail("a server was started")
    )
    with pytest.raises(ModelError, match=f"^{key} ./none: no such folder"):
        run_locally("pe", [f"{key}=./none"], None, fresh=False, debug=False)
