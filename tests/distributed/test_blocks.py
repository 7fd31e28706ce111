"""Which devices a block gets, which process a component lands in, and what siblings are to each
other."""

from typing import Any

import pytest

from rl_core.distributed import Block, DevicePool, Remote, TrainTopology, placement, remote
from rl_core.distributed.device_pool import Devices
from rl_core.errors import RecipeError, RLTrainError
from tests.distributed.components import Counter, Probe
from tests.processes import still_running

Pair = tuple[Block, Remote, Remote]


def test_shares_are_disjoint_and_come_back():
    devices = Devices((0, 1, 2, 3))
    one, two = devices.take(0.5), devices.take(0.25)
    assert (one.numbers, two.numbers) == ((0, 1), (2,))
    with pytest.raises(RecipeError, match=r"fraction=0.5\) asks for 2 of 4 devices, 1 are free"):
        devices.take(0.5)
    devices.give_back(one)
    assert devices.take(0.5).numbers == (0, 1)


@pytest.mark.parametrize(
    ("fraction", "exact"), [(0.3, "1.2"), (0.1, "0.4"), (0.0, "0"), (1.25, "5"), (-0.5, "-2")]
)
def test_a_fraction_that_is_no_whole_number_of_devices_is_refused(fraction: float, exact: str):
    message = rf"fraction={fraction:g}\) of 4 devices is {exact} devices, no whole number .* 1/4, 2/4, 3/4, 4/4"  # noqa: E501
    with pytest.raises(RecipeError, match=message):
        Devices((0, 1, 2, 3)).take(fraction)


def test_thirds_of_three_devices_are_whole():
    devices = Devices((0, 1, 2))
    assert [devices.take(1 / 3).numbers for _ in range(3)] == [(0,), (1,), (2,)]


@pytest.mark.parametrize(
    "options",
    [
        {"num_devices": 0},
        {"num_devices": 4, "devices_per_node": 3},
        {"num_devices": 1, "workers_per_device": 0},
    ],
)
def test_a_pool_of_impossible_numbers_is_refused(options: dict[str, Any]):
    with pytest.raises(RecipeError, match="num_devices="):
        DevicePool(**options)


def test_blocks_open_without_a_cluster_and_nested_ones_take_disjoint_shares_of_the_outer():
    pool = DevicePool(8)
    with placement(pool, fraction=0.5) as outer:
        with placement(pool, fraction=0.5) as one, placement(pool, fraction=0.5) as inner:
            pass
        with placement(pool, fraction=0.5) as two:
            pass
        with pytest.raises(RecipeError, match="0 are free"), placement(pool, fraction=0.25):
            pass
    with placement(pool, fraction=0.5) as beside:
        pass
    found = [block.devices.numbers for block in (outer, one, inner, two, beside)]
    assert found == [(0, 1, 2, 3), (0, 1), (0,), (2, 3), (4, 5, 6, 7)]
    outer.close()
    with placement(pool, fraction=0.25) as again:
        pass
    assert again.devices.numbers == (0, 1)


def test_joined_devices_count_once_and_lie_on_one_node():
    pool = DevicePool(8, devices_per_node=4, joined=[2, 2])
    with placement(pool, fraction=2 / 6) as engine:
        pass
    with placement(pool, fraction=4 / 6) as training:
        pass
    assert (engine.devices.numbers, training.devices.numbers) == ((0, 1), (2, 3, 4, 5))
    with pytest.raises(RecipeError, match=r"3 devices .* one worker, .*=4 puts .* multiple of 3"):
        DevicePool(8, devices_per_node=4, joined=[3, 3])


def test_a_topology_that_does_not_fit_leaves_the_devices_free():
    pool = DevicePool(4)
    with (
        pytest.raises(RecipeError, match="does not divide the world size of 4"),
        placement(pool, topology=TrainTopology(tp_size=3)),
    ):
        pass
    with placement(pool) as block:
        assert block.world_size == 4


def test_siblings_share_a_process_and_are_plain_objects_to_each_other(pair: Pair):
    block, probe, counter = pair
    assert probe.pid() == counter.pid() == block.pids()
    assert len(set(block.pids())) == 2
    start = counter.get()
    assert probe.add(5) == counter.get() == [value + 5 for value in start]
    assert probe.count_others() == [[value] for value in counter.get()]
    assert probe.threads() == [1, 1]


def test_a_classmethod_may_build(pool: DevicePool, pair: Pair):
    with placement(pool, fraction=0.5) as block:
        counter = remote(Counter.from_text, "42")
        probe = remote(Probe, counter)
    try:
        assert (counter.get(), probe.ask_counter()) == ([42, 42], [42, 42])
        assert not set(block.pids()) & set(pair[0].pids())
    finally:
        block.close()


def test_what_is_no_factory_is_refused(pool: DevicePool):
    with pytest.raises(RLTrainError, match=r"remote\(Counter\) needs a surrounding"):
        remote(Counter, 1)
    for factory in (len, Counter(1).get, Probe.pid):
        with pytest.raises(TypeError, match="class or a classmethod"):
            remote(factory)


def test_components_with_processes_of_their_own_call_each_other_by_handle(pool: DevicePool):
    with placement(pool, fraction=0.25, shared_workers=False) as block:
        counter = remote(Counter, 3)
        probe = remote(Probe, counter)
        assert counter.pid() != probe.pid()
        assert probe.ask_counter() == [[3]]
        with pytest.raises(
            RecipeError, match=r"device\(s\) \[2\] already hold workers_per_device=2"
        ):
            remote(Counter, 0)
    pids = block.pids()
    assert len(set(pids)) == 2
    block.close()
    assert not still_running(pids)
    block.close()


def test_a_cluster_that_is_too_small_is_refused_at_once(ray_cluster: None):
    with (
        pytest.raises(RecipeError, match=r"needs 64 x \{'CPU': 1.0\}; .* has room for 4"),
        placement(DevicePool(64)),
    ):
        remote(Counter, 1)


def test_a_block_that_fails_ends_its_workers(pool: DevicePool, pair: Pair):
    pids: list[int] = []
    with pytest.raises(ZeroDivisionError), placement(pool, fraction=0.25) as block:
        remote(Counter, 1)
        pids = block.pids()
        raise ZeroDivisionError
    assert pids
    assert not still_running(pids)
