"""Services without the services: who may listen, what is recorded, and what a start that fails
leaves behind."""

import http.server
import json
import socket
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
import yaml

from rl_core.errors import DataError, ServiceError, StorageError
from rl_core.runtime.home import Home
from rl_core.runtime.home_keys import prefect_password
from rl_core.runtime.process_record import find_process, start_time, stop_tree
from rl_core.services import catalogue, service
from rl_core.services.all_services import Stack
from rl_core.services.announcing import announce
from rl_core.services.catalogue import WORK_POOLS
from rl_core.services.exposure import check_exposure, is_local
from rl_core.services.service import Record, Service, State
from tests.processes import still_running

SLEEP = [sys.executable, "-c", "import time; print('begun', flush=True); time.sleep(60)"]
PARENT = [
    sys.executable,
    "-c",
    "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'], stdin=None)",
]


def sleeper(answers=lambda: True) -> Service:
    return Service("sleeper", SLEEP, {}, "http://127.0.0.1:1", answers)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.1.1", "::1", "localhost"])
def test_this_machine_alone_needs_no_password(host: str):
    assert is_local(host)
    check_exposure(host)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "192.0.2.7", "example.org", "localhost.example.org"]
)
def test_others_are_refused_without_passwords_and_told_how(
    host: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    for name in (
        "PREFECT_SERVER_API_AUTH_STRING", "PREFECT_API_AUTH_STRING", "MLFLOW_AUTH_CONFIG_PATH",
        "MLFLOW_FLASK_SERVER_SECRET_KEY",
    ):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    # Were the check gone, real servers would listen to everyone.
    monkeypatch.setattr(Stack, "_start_all", lambda *_: pytest.fail("services are started"))
    with pytest.raises(
        ServiceError, match=r"PREFECT_SERVER_API_AUTH_STRING.*MLFLOW_AUTH_CONFIG_PATH"
    ) as refused:
        Stack(Home(tmp_path / "home"), print).up(host)
    assert "export PREFECT_API_AUTH_STRING" in str(refused.value)
    assert not (tmp_path / "home").exists(), "nothing was started"
    monkeypatch.setenv("PREFECT_SERVER_API_AUTH_STRING", "ada:secret")
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "ada:other")
    with pytest.raises(ServiceError, match="the same as the server's"):
        check_exposure(host)


PASSWORDS = {
    "PREFECT_SERVER_API_AUTH_STRING": "ada:secret",
    "PREFECT_API_AUTH_STRING": "ada:secret",
    "MLFLOW_FLASK_SERVER_SECRET_KEY": "random",
}


@pytest.fixture
def all_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Everything that an exposed server asks for."""
    config = tmp_path / "basic_auth.ini"
    config.write_text("[mlflow]\n")
    for name, value in PASSWORDS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MLFLOW_AUTH_CONFIG_PATH", str(config))
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: object() if name == "flask_wtf" else None
    )


@pytest.mark.usefixtures("all_set")
def test_others_are_let_in_when_every_password_is_set():
    check_exposure("0.0.0.0")


@pytest.mark.usefixtures("all_set")
@pytest.mark.parametrize(
    ("changed", "missing"),
    [
        (
            {"PREFECT_SERVER_API_AUTH_STRING": ""},
            r"PREFECT_SERVER_API_AUTH_STRING \(user:password\)",
        ),
        (
            {"PREFECT_SERVER_API_AUTH_STRING": "secret", "PREFECT_API_AUTH_STRING": "secret"},
            r"\(user:password\)",
        ),
        ({"PREFECT_API_AUTH_STRING": ""}, r"PREFECT_API_AUTH_STRING \(the same as the server's\)"),
        (
            {"PREFECT_API_AUTH_STRING": "ada:other"},
            r"PREFECT_API_AUTH_STRING \(the same as the server's\)",
        ),
        ({"MLFLOW_AUTH_CONFIG_PATH": ""}, r"MLFLOW_AUTH_CONFIG_PATH \(a file\)"),
        (
            {"MLFLOW_AUTH_CONFIG_PATH": "/nowhere/basic_auth.ini"},
            r"MLFLOW_AUTH_CONFIG_PATH \(a file\)",
        ),
        ({"MLFLOW_FLASK_SERVER_SECRET_KEY": ""}, "MLFLOW_FLASK_SERVER_SECRET_KEY"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_every_password_that_is_missing_is_named_alone(
    changed: dict[str, str], missing: str, monkeypatch: pytest.MonkeyPatch
):
    for name, value in changed.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(
        ServiceError, match=rf"lets others in; missing: [^;]*{missing}\. Set all of"
    ):
        check_exposure("0.0.0.0")


@pytest.mark.usefixtures("all_set")
def test_a_server_without_the_package_that_asks_for_passwords_is_not_exposed(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ServiceError, match=r"missing: the packages of mlflow\[auth\]\. Set"):
        check_exposure("0.0.0.0")


def test_a_started_service_is_found_again_and_stopped(tmp_path: Path):
    record = sleeper().start(tmp_path, tmp_path / "logs" / "sleeper.log").wait()
    process = record.process
    assert process is not None
    try:
        assert sleeper().state(record) is State.RUNNING
        assert Record.model_validate_json(record.model_dump_json()).process == process
        assert find_process(record.pid, record.started - 60) is None, (
            "another process had this id before"
        )
        assert process.pid != psutil.Process().pid
    finally:
        stop_tree(process)
    assert record.process is None
    assert sleeper().state(record) is State.STOPPED


def test_what_runs_below_a_service_ends_with_it():
    parent = psutil.Popen(PARENT, stdin=subprocess.PIPE)
    while not (below := parent.children()):
        pass
    stop_tree(parent, grace_s=5)
    assert not still_running(below)
    assert parent.stdin is not None
    parent.stdin.close()


def test_a_service_that_ends_or_stays_silent_is_told_with_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(service, "START_S", 2.0)
    broken = Service(
        "broken", [sys.executable, "-c", "raise SystemExit('no such port')"], {}, "", lambda: False
    )
    with pytest.raises(
        ServiceError, match=r"broken ended with code 1; the end of .*broken\.log:\nno such port"
    ):
        broken.start(tmp_path, tmp_path / "broken.log").wait()
    before = set(psutil.Process().children())
    with pytest.raises(ServiceError, match="sleeper does not answer"):
        sleeper(lambda: False).start(tmp_path, tmp_path / "silent.log").wait()
    left = set(psutil.Process().children()) - before
    assert not still_running(left)


def test_a_service_is_found_again_after_the_clock_was_set(monkeypatch: pytest.MonkeyPatch):
    me, booted = psutil.Process(), psutil._psplatform.boot_time()
    record = Record(pid=me.pid, started=start_time(me), url="", log="")
    by_the_clock = me.create_time()
    monkeypatch.setattr(psutil._psplatform, "boot_time", lambda: booted + 5400)
    assert psutil.Process().create_time() == pytest.approx(by_the_clock + 5400), "the clock was set"
    assert record.process == me


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("prefect", {"pid": "x"}),
        ("prefect", {"pid": -1}),
        ("prefect", {"pid": 10**30}),
        ("mlflow", {"started": None}),
        ("mlflow", {"url": 3}),
        ("prefect", {"url": "http://127.0.0.1"}),
        ("prefect", {"url": "http://127.0.0.1:x"}),
        ("worker-rl-train", {"another": 1}),
        ("of-nobody", {}),
    ],
)
def test_a_record_that_is_none_is_named(tmp_path: Path, name: str, change: dict[str, object]):
    home = Home(tmp_path)
    sound = {"pid": 1, "started": 1.0, "url": "http://127.0.0.1:4321", "log": ""}
    home.services.write_text(json.dumps({"deployed": "x", name: sound | change}))
    with pytest.raises(StorageError, match=rf"services\.json: {name}: .* is no record"):
        Stack(home, print).status()


def test_the_home_knows_only_services_that_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING"):
        monkeypatch.delenv(name, raising=False)
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    home = Home(tmp_path)
    assert "PREFECT_API_URL" not in home.environment()
    me = psutil.Process()
    stack = Stack(home, print)
    entry = {"pid": me.pid, "started": start_time(me), "url": "http://127.0.0.1:4321", "log": ""}
    stack._save({"prefect": entry, "mlflow": entry})
    found = home.environment()
    assert found["PREFECT_API_URL"] == "http://127.0.0.1:4321/api"
    assert found["PREFECT_API_AUTH_STRING"] == prefect_password(tmp_path)
    monkeypatch.setenv("PREFECT_API_URL", "https://theirs.example/api")
    assert "PREFECT_API_AUTH_STRING" not in home.environment(), (
        "the key is given to our server alone"
    )
    monkeypatch.delenv("PREFECT_API_URL")
    assert home.mlflow_ui == "http://127.0.0.1:4321"
    assert "MLFLOW_TRACKING_TOKEN" not in found, "runs write to the database"
    for url, given in (
        ("http://127.0.0.1:4321", True),
        ("http://127.0.0.1:43210", False),
        ("https://127.0.0.1:4321", False),
    ):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", url)
        assert ("MLFLOW_TRACKING_TOKEN" in home.environment()) is given, url
    stack._save({"prefect": entry | {"started": 1.0}})
    assert "PREFECT_API_URL" not in home.environment()
    assert stack.ended() == ["prefect"]


def test_every_deployment_has_a_pool_that_is_started():
    deployments = yaml.safe_load(catalogue.PROJECT_FILE.read_text())["deployments"]
    assert {deployment["work_pool"]["name"] for deployment in deployments} == {
        pool.name for pool in WORK_POOLS
    }


def test_training_waits_in_a_pool_of_its_own():
    deployments = yaml.safe_load(catalogue.PROJECT_FILE.read_text())["deployments"]
    pools = {one["entrypoint"].partition(":")[2]: one["work_pool"]["name"] for one in deployments}
    assert pools == {"rl_train": "rl-train", "rl_prepare": "rl-light", "rl_evaluate": "rl-light"}
    assert {pool.name: pool.at_once for pool in WORK_POOLS} == {"rl-train": 1, "rl-light": None}


def test_deployments_of_the_training_flow_differ_in_the_recipe_of_their_name_alone():
    """One that completes, in `tests/e2e/test_deployment.py`, stands for all."""
    from rl_core.runs.recipes import chain_names, recipe_names

    deployments = yaml.safe_load(catalogue.PROJECT_FILE.read_text())["deployments"]
    training = [one for one in deployments if one["entrypoint"] == "flows/rl_train.py:rl_train"]
    names = [one["name"] for one in training]
    assert [one["parameters"] for one in training] == [{"recipe": name} for name in names]
    shipped = {*recipe_names(), *chain_names()}
    assert {*names, *(f"smoke/{name}" for name in names)} <= shipped
    told = {"name", "entrypoint", "parameters", "description", "tags", "schedules", "triggers"}
    assert {key for one in training for key in one} - told == {"work_pool"}


def test_a_taken_port_is_left_to_its_owner():
    from rl_core.services.ports import free_port

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert free_port("127.0.0.1", port) not in (0, port)
    with pytest.raises(ServiceError, match=r"cannot listen on 192\.0\.2\.77"):
        free_port("192.0.2.77", 0)


def test_only_a_good_answer_counts_as_health():
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/health" else 500)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        assert catalogue.answers(f"{url}/health")
        assert not catalogue.answers(f"{url}/broken")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert not catalogue.answers(f"{url}/health")
    with pytest.raises(ServiceError, match=r"GET http.*/health failed"):
        catalogue.ask(f"{url}/health")


def test_a_server_whose_database_is_busy_is_asked_again():
    answers = iter([503, 503, 204])

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_DELETE(self) -> None:
            self.send_response(next(answers))
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            catalogue.tell("DELETE", f"http://127.0.0.1:{server.server_address[1]}/worker", None)
        finally:
            server.shutdown()
            thread.join()
    assert list(answers) == []


def test_a_server_that_asks_for_a_key_is_said_with_the_setting():
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(401)

        def log_message(self, *_: object) -> None:
            return

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            with pytest.raises(ServiceError, match=r"with 401; set PREFECT_API_AUTH_STRING: .*"):
                catalogue.ask(f"http://127.0.0.1:{server.server_address[1]}/pools")
        finally:
            server.shutdown()
            thread.join()


def test_an_announcement_needs_the_data_and_a_server(tmp_path: Path):
    with pytest.raises(ServiceError, match="rl-train up"):
        announce("", str(tmp_path))
    with pytest.raises(DataError, match="does not exist"):
        announce("http://127.0.0.1:1/api", str(tmp_path / "nothing"))
    with pytest.raises(ServiceError, match=r"POST http://127.0.0.1:1/api/events failed"):
        announce("http://127.0.0.1:1/api", "s3://bucket/rows")
