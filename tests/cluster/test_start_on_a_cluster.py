"""A run's start on machines as they are found: names as Debian writes them, no shared disk, a
driver's own modules, a machine that is lost."""

import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from rl_core.distributed.nodes.preflight import sketch
from tests.cluster.machines import PORT, Machine, Network, can_make_machines, network, start_ray

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not can_make_machines(), reason="needs root and network namespaces"),
]


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    """Machines a and b, a node of one CPU each, and c, which is no node."""
    root = tmp_path_factory.mktemp("cluster")
    with network(root, home=root / "home") as made:
        start_ray(made.add("a"))
        start_ray(made.add("b"), made.machines["a"])
        made.add("c")
        yield made


ADDRESS = f"10.77.0.1:{PORT}"


def start(machine: Machine, **asked: Any) -> dict[str, Any]:
    asked = {"address": ADDRESS, **asked}
    done = machine.run(sys.executable, "-m", "tests.cluster.start", json.dumps(asked))
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_nodes_that_do_not_see_the_run_are_named_and_nothing_starts(machines: Network):
    a = machines.machines["a"]
    (a.folder / "home" / "run").mkdir()
    (a.folder / "home" / "run" / ".nonce").write_text("one")
    run = str(machines.home / "run")
    answer = start(a, needs={"run": run, "nonce": "one"})
    assert answer["error"] == "StorageError"
    assert answer["said"].startswith(f"node(s) b (10.77.0.2) does not see {run}")
    assert "give placement.storage" in answer["said"]


def test_two_nodes_work_together_though_their_names_mean_themselves(machines: Network):
    a, b = machines.machines["a"], machines.machines["b"]
    model = a.folder / "home" / "models" / "tiny"
    model.mkdir(parents=True)
    (model / "weights.bin").write_bytes(os.urandom(1000))
    (model / "empty").touch()
    users = a.folder / "home" / "mine"
    users.mkdir()
    (users / "lower.py").write_text("import beside\nSAID = beside.SAID\n")
    (users / "beside.py").write_text("SAID = 'of the driver'\n")
    mine = machines.home / "mine"
    answer = start(
        a,
        needs={
            "folders": [[str(machines.home / "models" / "tiny"), sketch(model)]],
            "home": str(machines.home),
        },
        modules=[str(mine / "lower.py"), str(mine / "beside.py")],
        module="lower",
        # Longer than the ranks may be silent: they are asked where they are, not here.
        timeout_s=10,
        hold_s=14,
    )
    assert set(answer["held"]) == {14}
    assert answer["total"] == [2, 2]
    assert sorted(host for host, _ in answer["facts"]) == ["a", "b"]
    assert answer["imported"] == ["of the driver"] * 2
    assert {threads for _, threads in answer["facts"]} == {os.cpu_count()}
    assert ["got a copy" in note for note in answer["notes"]] == [True]
    assert sketch(b.folder / "home" / "models" / "tiny") == sketch(model)


@pytest.mark.parametrize(
    ("machine", "address", "kind", "said"),
    [
        ("c", f"10.77.0.1:{PORT}", "ServiceError", "this machine is no node of that cluster"),
        ("a", "ray://10.77.0.1:10001", "ServiceError", "a run is no Ray client"),
        ("a", "10.77.0.1:1", "Unreachable", "no Ray cluster answers at 10.77.0.1:1"),
    ],
)
def test_a_driver_that_cannot_work_is_told(
    machines: Network, machine: str, address: str, kind: str, said: str
):
    answer = start(machines.machines[machine], address=address)
    assert answer["error"] == kind and said in answer["said"]


def test_a_lost_machine_is_no_users_mistake(machines: Network):
    a, b = machines.machines["a"], machines.machines["b"]
    go, log = a.folder / "home" / "go", a.folder / "lost.log"
    asked = {"address": ADDRESS, "wait_s": 2, "until": str(machines.home / "go")}
    driver = a.start(sys.executable, "-m", "tests.cluster.start", json.dumps(asked), log=log)
    end = time.monotonic() + 120
    while "seen 2" not in log.read_text() and time.monotonic() < end:
        time.sleep(0.1)
    b.kill()
    go.touch()
    assert driver.wait(timeout=120) == 0, log.read_text()
    answer = json.loads(log.read_text().splitlines()[-1])
    assert answer["error"] == "NodeLost"
    assert "has room for 1" in answer["said"]
    # Another run lost nothing: what died before it is no reason to wait.
    answer = start(a)
    assert answer["error"] == "RecipeError" and answer["notes"] == []
    answer = start(a, wait_s=2, least=1)
    assert answer["total"] == [1] and "waiting up to 2 s" in answer["notes"][0]
