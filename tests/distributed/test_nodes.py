"""What is said of a cluster before a run starts on it."""

import socket
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from rl_core.distributed.nodes.driver import check_driver
from rl_core.distributed.nodes.preflight import (
    Needs,
    NodeReport,
    check,
    code_digest,
    digest_of_code,
    look,
    sketch,
)
from rl_core.distributed.nodes.user_modules import modules_to_send
from rl_core.errors import RecipeError, ServiceError, StorageError, Unreachable


def test_an_address_that_no_driver_can_use_is_told_at_once():
    with pytest.raises(ServiceError, match=r"a run is no Ray client.*h:6379"):
        check_driver("ray://h:10001")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with pytest.raises(ServiceError, match="this machine is no node of that cluster"):
            check_driver(f"127.0.0.1:{port}")
    with pytest.raises(Unreachable, match=r"no Ray cluster answers at 127\.0\.0\.1:"):
        check_driver(f"127.0.0.1:{port}")


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["raylet", "--gcs-address=10.0.0.1:{port}"], True),
        (["raylet", "--gcs-address=10.0.0.1:1"], False),
        ([], False),  # it has ended
        (None, True),  # another user's
    ],
)
def test_a_node_of_the_cluster_is_known_by_its_raylet(
    monkeypatch: pytest.MonkeyPatch, options: list[str] | None, found: bool
):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        said = None if options is None else [option.format(port=port) for option in options]
        raylet = SimpleNamespace(info={"name": "raylet", "cmdline": said})
        monkeypatch.setattr("psutil.process_iter", lambda fields: [raylet])
        with nullcontext() if found else pytest.raises(ServiceError, match="is no node"):
            check_driver(f"127.0.0.1:{port}")


def other(here: NodeReport, **changes: object) -> dict[str, NodeReport]:
    return {"0" * 56: NodeReport(**{**vars(here), **changes})}  # type: ignore[arg-type]


def test_each_fault_of_a_node_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    named = "rl_core.distributed.nodes.preflight.name_of"
    monkeypatch.setattr(named, lambda node: "node b (10.0.0.2)")
    here, needs = look(Needs()), Needs(run=str(tmp_path), nonce="one")
    check(other(here), here, needs)
    with pytest.raises(RecipeError, match=r"node\(s\) b \(10.0.0.2\) has other code than this"):
        check(other(here, code="x"), here, needs)
    with pytest.raises(RecipeError, match=r"has torch 1\.0, this one"):
        check(other(here, versions={**here.versions, "torch": "1.0"}), here, needs)
    with pytest.raises(RecipeError, match="has no /models/x, or another one"):
        check(other(here, missing=("/models/x",)), here, needs)
    fault = look(needs).run_fault
    assert fault == "another folder there"
    with pytest.raises(StorageError, match=r"give placement\.storage"):
        check(other(here, run_fault=fault), here, needs)
    (tmp_path / ".nonce").write_text("one")
    assert look(needs).run_fault is None


def test_other_code_has_another_digest(tmp_path: Path):
    (tmp_path / "rl_core" / "train").mkdir(parents=True)
    nothing = digest_of_code(tmp_path)
    (tmp_path / "rl_core" / "train" / "step.py").write_text("RATE = 1\n")
    one = digest_of_code(tmp_path)
    (tmp_path / "rl_core" / "train" / "step.py").write_text("RATE = 2\n")
    assert len({nothing, one, digest_of_code(tmp_path)}) == 3
    assert code_digest() == digest_of_code(Path(__file__).parents[2]), "this project's own"


def test_copies_of_a_model_are_told_apart(tmp_path: Path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "w.bin").write_bytes(b"0" * 300_000)
    assert sketch(tmp_path / "a") == sketch(tmp_path / "b")
    (tmp_path / "b" / "w.bin").write_bytes(b"0" * 299_999 + b"1")
    assert sketch(tmp_path / "a") != sketch(tmp_path / "b")
    assert sketch(tmp_path / "nothing") == ""


def test_modules_beside_a_target_travel_and_installed_ones_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "mine_to_send.py").touch()
    (tmp_path / "beside.py").touch()
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "rows").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    values = {"rewards": [{"target": "mine_to_send:Lower"}], "algorithm": {"target": "torch:x"}}
    sent = [Path(one).name for one in modules_to_send(values)]
    assert sent == ["beside.py", "mine_to_send.py", "package"]
    assert modules_to_send({"algorithm": {"target": "rl_core.errors:UserError"}}) == []
