"""Workers that raise, die, hang and run out of memory, as real processes: the message says who and
why."""

import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from flows.local_run import interruptible
from rl_core.distributed import Block, DevicePool, Remote, placement, remote
from rl_core.errors import (
    DataError,
    RLTrainError,
    WorkerDied,
    WorkerError,
    WorkerHung,
    WorkerOutOfMemory,
)
from tests.distributed.components import Saboteur
from tests.processes import still_running

LONG_S = 600.0
"""Far beyond every timeout of these tests: who waits for it does not pass."""
Start = Callable[..., tuple[Block, Remote]]


def assert_ended(pids: list[int]) -> None:
    assert pids
    assert not still_running(pids), "worker processes outlive their block"


@pytest.fixture
def start(ray_cluster: None) -> Iterator[Start]:
    """Ranks with a Saboteur, and a given collective timeout; after the test none of their processes
    is left."""
    blocks: list[Block] = []

    def build(collective_timeout_s: float, num_ranks: int = 2) -> tuple[Block, Remote]:
        pool = DevicePool(
            num_ranks, threads_per_device=1, collective_timeout_s=collective_timeout_s
        )
        with placement(pool) as block:
            blocks.append(block)
            return block, remote(Saboteur)

    yield build
    for block in blocks:
        pids = block.pids()
        block.close()
        assert_ended(pids)


@pytest.fixture(scope="module")
def patient(ray_cluster: None) -> Iterator[tuple[Block, Remote]]:
    """Two ranks whose errors leave them whole."""
    with placement(DevicePool(2, threads_per_device=1)) as block:
        saboteur = remote(Saboteur)
    yield block, saboteur
    block.close()


def test_an_error_carries_rank_role_method_and_the_remote_traceback(patient: tuple[Block, Remote]):
    block, saboteur = patient
    with pytest.raises(WorkerError) as caught:
        saboteur.fail(1)
    message = str(caught.value)
    assert f"rank 1 (Saboteur-0.fail, pid {block.pids()[1]} on " in message
    assert "Unpicklable: two arguments" in message
    assert "in fail\n    raise Unpicklable" in message
    assert saboteur.meet() == [2.0, 2.0]


def test_the_projects_own_errors_arrive_as_themselves_with_their_place(
    patient: tuple[Block, Remote],
):
    with pytest.raises(DataError, match=r"^train.jsonl:17 field") as caught:
        patient[1].refuse(0)
    notes = "\n".join(caught.value.__notes__)
    assert "raised by rank 0 (Saboteur-0.refuse" in notes
    assert "in refuse" in notes


def kinds_of(kind: type[RLTrainError]) -> list[type[RLTrainError]]:
    """An error class and all below it that `rl_core/errors.py` defines."""
    below = [one for child in kind.__subclasses__() for one in kinds_of(child)]
    return [kind, *below] if kind.__module__ == RLTrainError.__module__ else below


@pytest.mark.parametrize("after", [None, OSError("no space left")], ids=["alone", "chained"])
@pytest.mark.parametrize("kind", kinds_of(RLTrainError))
def test_every_error_of_a_worker_ends_a_run_as_itself(
    patient: tuple[Block, Remote], kind: type[RLTrainError], after: BaseException | None
):
    with pytest.raises(kind) as caught, interruptible():
        patient[1].raise_kind(kind, after)
    error = caught.value
    assert type(error) is kind
    assert str(error) == "the disk is full"
    chain = list(chained(error))
    assert len(chain) == len({id(one) for one in chain}), "a circle of causes"
    assert "(Saboteur-0.raise_kind, pid" in "\n".join(error.__notes__)


def chained(error: BaseException | None) -> Iterator[BaseException]:
    """The causes as whoever prints an error follows them, as far as the second round of a
    circle."""
    for _ in range(20):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def test_a_constructor_that_raises_is_reported_like_a_method(ray_cluster: None):
    said = r"rank 1 \(Saboteur-1.__init__.*KeyError: 'no such setting'"
    with pytest.raises(WorkerError, match=said):  # noqa: SIM117
        with placement(DevicePool(2, threads_per_device=1)) as block:
            remote(Saboteur)
            remote(Saboteur, fail_at=1)
    assert_ended(block.pids())


@pytest.mark.parametrize("how", ["torch", "python"])
def test_running_out_of_memory_says_what_to_change(patient: tuple[Block, Remote], how: str):
    with pytest.raises(WorkerOutOfMemory, match=r"rank 1 .*exhaust") as caught:
        patient[1].exhaust(1, how)
    for advice in (
        "placement.micro_batch_size",
        "rollout.max_batch_size",
        "fsdp.activation_checkpointing",
    ):
        assert advice in str(caught.value)
    assert "in exhaust" in "\n".join(caught.value.__notes__)
    assert patient[1].meet() == [2.0, 2.0]


def test_a_rank_killed_within_a_collective_is_named_within_seconds(start: Start):
    block, saboteur = start(LONG_S)
    pid = block.pids()[1]
    began = time.monotonic()
    with pytest.raises(
        WorkerDied, match=rf"rank 1 \(Saboteur-0.die_in_collective, pid {pid}"
    ) as caught:
        saboteur.die_in_collective(1, 0.5)
    assert time.monotonic() - began < LONG_S / 10
    assert "SIGKILL" in str(caught.value)
    assert "placement.micro_batch_size" in str(caught.value)
    with pytest.raises(WorkerDied, match=r"rank 1|still wait"):
        saboteur.meet()
    block.close()
    with pytest.raises(WorkerDied, match="were closed"):
        saboteur.meet()


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [pytest.param("stay_away", marks=pytest.mark.long), "stay_away_from_subgroup"]
)
def test_a_rank_that_never_comes_to_a_collective_is_named_with_its_place(start: Start, method: str):
    block, saboteur = start(3.0)
    with pytest.raises(WorkerHung, match="siblings waited 3 s") as caught:
        getattr(saboteur, method)(0, LONG_S)
    message = str(caught.value)
    assert f"rank 0 (Saboteur-0.{method}, pid {block.pids()[0]}" in message
    assert "rank 1 (" not in message
    assert "components.py:" in message
    assert method in message.split("components.py:")[1]
    with pytest.raises(WorkerDied, match="still wait in an earlier call"):
        saboteur.meet()


@pytest.mark.slow
def test_a_stopped_rank_is_named_and_ended(start: Start):
    block, saboteur = start(3.0)
    with pytest.raises(WorkerHung, match=r"rank 1 \(Saboteur-0.stop.* does not answer at all"):
        saboteur.stop(1)
    assert psutil.Process(block.pids()[1]).status() == psutil.STATUS_STOPPED


@pytest.mark.slow
def test_a_call_outside_any_collective_that_stops_is_noticed_by_its_heartbeat(
    start: Start, monkeypatch: pytest.MonkeyPatch
):
    from rl_core.distributed import worker_group

    monkeypatch.setattr(worker_group, "HEARTBEAT_S", 1.0)
    _, saboteur = start(2.0, num_ranks=1)
    with pytest.raises(WorkerHung, match=r"rank 0 .*never_end.* does not answer at all"):
        saboteur.never_end()
