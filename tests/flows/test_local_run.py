"""What a local run starts ahead of its flow."""

import pytest

from flows.local_run import _cluster_of
from rl_core.recipes import load_recipe


@pytest.mark.parametrize("variable", ["RL_TRAIN_RAY_ADDRESS", "RAY_ADDRESS"])
def test_no_cluster_of_its_own_takes_the_place_of_one_that_is_named(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import rl_core.cluster

    monkeypatch.setenv(variable, "192.0.2.1:6379")
    with _cluster_of(load_recipe("text", [], None)):
        assert rl_core.cluster._early is None, "validation would run on it, and not where it was told to"
