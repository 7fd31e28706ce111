"""Checks of the loopback address, the default ports, proxies, and the services started by `up` or
by others."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from urllib.request import getproxies, proxy_bypass

from rl_core.doctor.finding import Finding, good, problem
from rl_core.runtime.home import Home
from rl_core.services import catalogue
from rl_core.services.addresses import Address, Server, named_addresses
from rl_core.services.all_services import Stack, Status
from rl_core.services.exposure import LOCALHOST
from rl_core.services.service import State

AREA = "services"


def examine_network(home: Home) -> Iterator[Finding]:
    """Check that services can be started and reached, and that those that were started still
    answer."""
    started = Stack(home, print).status()
    yield loopback()
    yield proxies()
    own = set()
    for one in started:
        if one.record and one.state is not State.STOPPED:
            own.add(one.record.url)
    for name, usual in catalogue.USUAL_PORTS.items():
        if f"http://{LOCALHOST}:{usual}" not in own:
            yield port(name, usual)
    yield from map(service, started)
    if not started:
        yield good(
            AREA, "services", "none started; `rl-train up` starts them, and runs work without"
        )
    for address in named_addresses(*Server):
        yield server(address, home)


def loopback() -> Finding:
    """Check that a port of this machine can be listened on and reached."""
    try:
        with (
            socket.create_server((LOCALHOST, 0)) as listener,
            socket.create_connection(listener.getsockname(), 2),
        ):
            return good(AREA, "loopback", f"{LOCALHOST} can be listened on and reached")
    except OSError as error:
        return problem(
            AREA, "loopback", f"{LOCALHOST}: {error}", "bring up the interface: ip link set lo up"
        )


def proxies() -> Finding:
    """Check that requests to this machine's own servers do not go through a proxy."""
    if any(name in getproxies() for name in ("http", "all")) and not proxy_bypass(LOCALHOST):
        fix = f"export NO_PROXY={LOCALHOST},localhost"
        return problem(
            AREA,
            "proxies",
            "a proxy is set for http, and this machine's own addresses go through it",
            fix,
        )
    return good(AREA, "proxies", "none between this machine and itself")


def port(name: str, number: int) -> Finding:
    """Check that the default port of a server is free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOCALHOST, number))
        except OSError as error:
            taken = f"{number} cannot be used ({error.strerror}); `rl-train up` takes a free one"
            return good(AREA, f"port of {name}", taken)
    return good(AREA, f"port of {name}", f"{number} is free")


def service(one: Status) -> Finding:
    """Check the state of a service that `up` started."""
    log = one.record.log if one.record else ""
    if one.state is State.RUNNING:
        return good(AREA, one.name, f"runs at {one.record.url}" if one.record else "runs")
    if one.state is State.SILENT:
        fix = f"look into {log}; rl-train down, rl-train up"
        return problem(AREA, one.name, "its process is there and does not answer", fix)
    return problem(
        AREA, one.name, "was started and has ended by itself", f"look into {log}; rl-train up"
    )


def server(address: Address, home: Home) -> Finding:
    """Check that a server named by the environment answers."""
    if (fault := address.fault()) is None:
        return good(AREA, address.setting, f"{address.url} can be used")
    return problem(AREA, address.setting, f"{address.url} {fault}", address.fix(home))
