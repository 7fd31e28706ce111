"""Machines in one: network namespaces with their own names, addresses, hosts files, shared memory,
processes and Ray folders, joined by a bridge.

Needs root and Linux. Each machine is one process namespace, so that killing its first process ends
everything on it, as a power cut does.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
NET = "10.77.0"
PORT = 6379
START_S = 120.0
TOKEN = uuid.uuid4().hex


def can_make_machines() -> bool:
    """Return True if this process may make network namespaces."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("nsenter") is None:
        return False
    name = f"rl-try-{uuid.uuid4().hex[:6]}"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode:
        return False
    subprocess.run(["ip", "netns", "del", name], check=True)
    return True


@dataclass
class Machine:
    """One machine of a network."""

    name: str
    address: str
    namespace: str
    folder: Path
    """Folder of the real machine with what is this one's own."""
    first: subprocess.Popen[bytes]
    """Process whose end ends everything on it."""
    pid: int
    """Its first process, as the real machine sees it."""
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def command(self, arguments: Sequence[str]) -> list[str]:
        """Return the command line that runs arguments on the machine."""
        inside = ["nsenter", "-t", str(self.pid), "-n", "-u", "-m", "-p", "-i", "--wd=/", "--"]
        return [*inside, *arguments]

    def run(
        self, *arguments: str, env: Mapping[str, str] | None = None, timeout_s: float = 300.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the machine to its end."""
        return subprocess.run(
            self.command(arguments),
            env=environment(env),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def start(
        self, *arguments: str, log: Path, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a command on the machine, with its output in a file."""
        with log.open("wb") as out:
            process = subprocess.Popen(
                self.command(arguments), env=environment(env), stdout=out, stderr=out
            )
        self.started.append(process)
        return process

    def unplug(self) -> None:
        """Take the cable out: packets get lost, processes live on."""
        subprocess.run(["ip", "-n", self.namespace, "link", "set", "eth0", "down"], check=True)

    def kill(self) -> None:
        """End everything on the machine at once."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.first.wait()
        for process in self.started:
            process.wait()


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of every process on a machine."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return kept | {
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": TOKEN,
        "RAY_worker_niceness": "0",
        "RAY_raylet_start_wait_time_s": "120",
        **(more or {}),
    }


class Network:
    """A bridge in a namespace of its own, and the machines on it."""

    def __init__(self, folder: Path, *, hosts: str, home: Path) -> None:
        """Create the bridge. Args: hosts: `debian` (a machine's own name is 127.0.1.1) or `real`.
        home: path at which each machine has a folder of its
        own."""
        self._folder, self._hosts, self.home = folder, hosts, home
        self._tag = uuid.uuid4().hex[:6]
        self._switch = f"rl-{self._tag}-sw"
        self.machines: dict[str, Machine] = {}
        home.mkdir(parents=True, exist_ok=True)
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "br0", "up")

    def add(self, name: str) -> Machine:
        """Make a machine."""
        number = len(self.machines) + 1
        namespace, address = f"rl-{self._tag}-{name}", f"{NET}.{number}"
        cable = f"v{self._tag}{number}"
        _ip("netns", "add", namespace)
        _ip("-n", namespace, "link", "set", "lo", "up")
        _ip("-n", self._switch, "link", "add", cable, "type", "veth", "peer", "name", "eth0",
            "netns", namespace)  # fmt: skip
        _ip("-n", self._switch, "link", "set", cable, "master", "br0", "up")
        _ip("-n", namespace, "addr", "add", f"{address}/24", "dev", "eth0")
        _ip("-n", namespace, "link", "set", "eth0", "up")
        folder = self._folder / name
        for part in ("home", "ray", "tmp"):
            (folder / part).mkdir(parents=True)
        own = "127.0.1.1" if self._hosts == "debian" else address
        (folder / "hosts").write_text(f"127.0.0.1 localhost\n{own} {name}\n")
        Path("/tmp/ray").mkdir(exist_ok=True)
        script = f"""
            hostname {name}
            mount -t tmpfs -o size=1g tmpfs /dev/shm
            mount --bind {folder}/hosts /etc/hosts
            mount --bind {folder}/ray /tmp/ray
            mount --bind {folder}/home {self.home}
            exec sleep infinity
        """
        first = subprocess.Popen(
            ["ip", "netns", "exec", namespace, "unshare", "--uts", "--mount", "--pid", "--ipc",
             "--fork", "--mount-proc", "--kill-child", "sh", "-ec", script]
        )  # fmt: skip
        machine = Machine(name, address, namespace, folder, first, _inner(first, "sleep"))
        self.machines[name] = machine
        return machine

    def close(self) -> None:
        """End every machine and take the network away."""
        for machine in self.machines.values():
            machine.kill()
            _ip("netns", "del", machine.namespace)
        _ip("netns", "del", self._switch)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def _inner(process: subprocess.Popen[bytes], name: str) -> int:
    """Return the first process of the machine, once it sleeps."""
    import psutil

    end = time.monotonic() + START_S
    while time.monotonic() < end:
        for child in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.Error):
                if child.name() == name:
                    return child.pid
        time.sleep(0.02)
    raise TimeoutError(f"the machine of process {process.pid} did not start")


@contextmanager
def network(folder: Path, *, home: Path, hosts: str = "debian") -> Iterator[Network]:
    """Have a network for the block."""
    made = Network(folder, hosts=hosts, home=home)
    try:
        yield made
    finally:
        made.close()


def start_ray(
    machine: Machine,
    head: Machine | None = None,
    cpus: int = 1,
    env: Mapping[str, str] | None = None,
) -> None:
    """Start a node of Ray on a machine: the head, or one that joins a head. Args: env: of every
    worker there."""
    where = ["--head", f"--port={PORT}", "--include-dashboard=false"]
    if head is not None:
        where = [f"--address={head.address}:{PORT}"]
    options = [f"--node-ip-address={machine.address}", f"--num-cpus={cpus}", "--num-gpus=0"]
    log = machine.folder / "ray.log"
    ray = str(Path(sys.executable).with_name("ray"))
    memory = f"--object-store-memory={150 * 2**20}"
    machine.start(ray, "start", *where, *options, memory, "--block", log=log, env=env)
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if "Ray runtime started" in log.read_text(errors="replace"):
            return
        time.sleep(0.2)
    raise TimeoutError(log.read_text(errors="replace"))
