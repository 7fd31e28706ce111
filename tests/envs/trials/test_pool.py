"""Properties of the processes in which environments are built."""

from collections.abc import Iterator

import pytest

from rl_core.envs.trials.pool import MAX_LOST, TrialPool
from rl_core.envs.trials.settings import Trial, TrialSettings, Verdict

OPTIONS = {"door": {"target": "tests.envs.trials.doors:DoorEnv"}}


@pytest.fixture
def pool() -> Iterator[TrialPool]:
    made = TrialPool(TrialSettings(OPTIONS, timeout_s=1.0), max_workers=1)
    yield made
    made.close()


def door(truth: str) -> Trial:
    return Trial("door", {"reward_spec": {"ground_truth": truth}})


def test_a_row_that_hangs_or_kills_its_process_is_named_and_the_others_are_judged(
    pool: TrialPool,
) -> None:
    found = pool.findings([door(truth) for truth in ("a", "die", "b", "key", "hang", "c")])
    assert [(one.index, one.verdict) for one in found] == [
        (1, Verdict.REFUSED),
        (3, Verdict.REFUSED),
        (4, Verdict.REFUSED),
    ]
    assert "ended its process (exit code 3)" in found[0].message
    assert (found[1].field, found[1].message) == ("db_id", "KeyError: 'db_id'")
    assert found[2].message == "building it took longer than 1 s"


def test_an_environment_that_ends_every_process_is_given_up(pool: TrialPool) -> None:
    found = pool.findings([door("die") for _ in range(MAX_LOST * 20)])
    assert [one.index for one in found] == list(range(MAX_LOST * 20))
    assert {one.verdict for one in found} == {Verdict.REFUSED}


def test_what_the_machine_lacks_is_no_fault_of_the_row(pool: TrialPool) -> None:
    found = pool.findings([door("lack"), door("a")])
    assert [one.verdict for one in found] == [Verdict.NOT_BUILT, Verdict.NOT_BUILT]
    assert found[0].message == "no such device here"


def test_an_import_that_fails_is_told_with_its_row() -> None:
    pool = TrialPool(TrialSettings(), max_workers=1)
    try:
        (found,) = pool.findings([Trial("no_such.module:Env", {})])
    finally:
        pool.close()
    assert found.verdict is Verdict.REFUSED and "no_such" in found.message
