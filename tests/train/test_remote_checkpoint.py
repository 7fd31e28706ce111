"""A checkpoint in an object store is that of a folder: ranks write and read their shards there, and
training goes on bit for bit."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_core.ranks.rank_info import RankInfo
from rl_core.runtime.storage import RemoteFolder
from tests.object_store import ObjectStore, object_store
from tests.train.jobs import Setup, largest_difference, make_both
from tests.train.ranks import Ranks
from tests.train.test_resume import refusal, second_half, setup_of, straight


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectStore]:
    with object_store() as running:
        yield running


def reaching(rank_info: RankInfo, environment: Mapping[str, str], job: Any, *args: object) -> Any:
    """Run a job in a process that reaches the store."""
    os.environ.update(environment)
    return job(rank_info, *args)


def exported(rank_info: RankInfo, setup: Setup, folder: str) -> None:
    backend, _ = make_both(rank_info, setup)
    backend.export(folder)


@pytest.mark.slow
def test_steps_before_and_after_a_checkpoint_in_a_store_are_those_without(
    ranks: Ranks,
    tiny_model_dir: Path,
    server: ObjectStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    setup, folder = setup_of(tiny_model_dir, "full"), RemoteFolder("s3://bucket/a/policy")
    expected = ranks.run(2, straight, setup)
    ranks.run(2, reaching, server.environment, straight, setup, str(folder))
    names = set(folder.objects())
    assert {"rank-0.pt", "rank-1.pt", "contents.json", "weights/.metadata"} <= names
    resumed = ranks.run(2, reaching, server.environment, second_half, setup, str(folder))
    for wanted, got in zip(expected, resumed, strict=True):
        assert wanted["figures"] == got["figures"]
        assert torch.equal(wanted["draw"], got["draw"])
        assert all(
            torch.equal(one, got["weights"][name]) for name, one in wanted["weights"].items()
        )
    fewer = ranks.run(1, reaching, server.environment, second_half, setup, str(folder))
    assert largest_difference(expected[0]["weights"], fewer[0]["weights"]) < 3e-6
    folder.remove("weights/__0_0.distcp")
    said = ranks.run(1, reaching, server.environment, refusal, setup, str(folder))[0]
    assert "policy cannot be read: no such file there" in said
    ranks.run(2, reaching, server.environment, exported, setup, "s3://bucket/a/model")
    assert "config.json" in RemoteFolder("s3://bucket/a/model").objects()
