"""All checks, in the order in which problems are best fixed."""

from __future__ import annotations

from collections.abc import Iterator

from rl_core.doctor.finding import Finding
from rl_core.doctor.machine import examine_machine
from rl_core.doctor.network import examine_network
from rl_core.doctor.packages import examine_packages
from rl_core.doctor.sandbox import examine_sandbox
from rl_core.runtime.home import Home


def examine(home: Home) -> Iterator[Finding]:
    """Run all checks; yield each finding as soon as it is known."""
    yield from examine_packages()
    yield from examine_machine(home)
    yield from examine_network(home)
    yield examine_sandbox()
