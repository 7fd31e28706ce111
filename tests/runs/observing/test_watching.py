"""The watchers of a run say what rang once, with rows, and stop it only where its recipe asks."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rl_core.data_proto import DataProto
from rl_core.errors import StoppedByWatcher, UserError
from rl_core.rollout.sample_ids import id_columns
from rl_core.runs.observing.watching import RunWatch
from rl_core.runs.recipes import load_recipe
from rl_core.runs.retraining import origin_of
from rl_core.runs.run_folder import RunFolder, run_key
from rl_core.trainers.metrics.source_shares import SourceShares
from rl_core.trainers.progress import ProgressEvent, listeners
from rl_core.trainers.step_record import Portion, StepRecord
from schemas.receipts import CacheReceipt
from tests.watch.histories import history

SICK = history(8, response_length_mean=[100.0] * 5 + [400.0])
SOURCES = ("a", "b/c")


@pytest.fixture
def events() -> Iterator[list[ProgressEvent]]:
    said: list[ProgressEvent] = []
    listeners.append(said.append)
    yield said
    listeners.remove(said.append)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    (tmp_path / "steps").mkdir()
    return RunFolder(tmp_path)


def record_of(step: int) -> StepRecord:
    """Two replies to each of two prompts of two sources; the second prompt teaches nothing."""
    prompts = ["p0", "p0", "p1", "p1"]
    mask_BT = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1], [1, 1, 0]])
    advantages_BT = torch.tensor([[1.0], [-1.0], [0.0], [0.0]]) * mask_BT
    batch = DataProto.from_dict(
        {
            "rewards": torch.tensor([1.0, 0.0, 1.0, 1.0]),
            "failed": torch.zeros(4, dtype=torch.bool),
            "num_tokens": mask_BT.sum(1),
            "response_mask": mask_BT,
            "advantages": advantages_BT,
            "taught": (advantages_BT != 0).any(1),
        },
        {
            **id_columns(prompts),
            "uid": prompts,
            "prompt": [[{"role": "user", "content": one}] for one in prompts],
            "response": ["reply"] * 4,
            "ground_truth": ["4"] * 4,
        },
    )
    items = {
        f"p{at}": {"uid": f"p{at}", "env_extras": {"data_source": name}}
        for at, name in enumerate(SOURCES)
    }
    return StepRecord(step, items, {"policy": [Portion(batch)]})


def test_it_says_so_once_with_the_rows_that_show_it(folder: RunFolder, events: list[ProgressEvent]):
    watched = RunWatch(load_recipe("text"), folder)
    begun = [alarm for step in SICK for alarm in watched.observe(step, record_of(8))]
    (alarm,) = begun
    (event,) = events
    assert event.alarm == alarm and event.text == str(alarm)
    # The longest rows come first.
    assert [one.split(":")[1:] for one in alarm.sample_ids] == [
        one.split(":")[1:] for one in (record_of(8).tracks["policy"][0].fetch(["sample_id"]))
        .non_tensor_batch["sample_id"][[2, 0, 3]]
    ]  # fmt: skip
    assert f"rows: {alarm.sample_ids[0]}" in event.text
    watched.check()


def test_a_run_stops_where_its_recipe_asks_and_goes_on_where_it_no_longer_does(
    folder: RunFolder, events: list[ProgressEvent]
):
    folder.save_steps(1, SICK)
    folder.checkpoint(1).mkdir(parents=True)
    (folder.checkpoint(1) / ".complete").touch()
    stopping = load_recipe("text", ["watch.length=stop"])
    with pytest.raises(
        StoppedByWatcher, match=r"checkpoint of iteration 1.*watch.length=warn"
    ) as e:
        RunWatch(stopping, folder).check()
    assert isinstance(e.value, UserError), "which no task retries"
    RunWatch(load_recipe("text"), folder).check()
    assert events == [], "what was said before a restart is not said again"


def test_watchers_are_no_part_of_a_runs_identity():
    plain, other = load_recipe("text"), load_recipe("text", ["watch.kl=stop", "watch.signal=off"])
    assert run_key(plain, "data") == run_key(other, "data")
    cache = CacheReceipt.model_construct(sources=[], sets={})
    assert origin_of(plain, cache) == origin_of(other, cache)


def test_the_sources_of_a_step_are_measured_once_there_are_two():
    shares = SourceShares([])
    metrics = shares(record_of(1))
    assert metrics == {
        **{"source/a/sampled_share": 0.5, "source/a/reward_mean": 0.5},
        **{"source/a/learning_share": 1.0, "source/b-c/sampled_share": 0.5},
        **{"source/b-c/reward_mean": 1.0, "source/b-c/learning_share": 0.0},
    }
    alone = record_of(2)
    alone.items = {uid: dict(alone.items["p0"], uid=uid) for uid in alone.items}
    assert SourceShares([])(alone) == {}
    assert SourceShares([metrics])(alone)["source/a/sampled_share"] == 1.0
    assert shares(None) == {}
