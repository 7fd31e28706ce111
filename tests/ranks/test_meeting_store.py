"""Ranks meet on one address."""

import os
from datetime import timedelta

import psutil
import pytest

from rl_core.ranks.meeting_store import (
    INTERFACE_VARIABLES,
    listen_on_interface_of,
    open_store,
)
from tests.processes import open_to_others

PATIENCE = timedelta(seconds=20)


def test_a_store_listens_on_its_own_address_alone() -> None:
    opened = open_store("127.0.0.1", 0, None, is_master=True, timeout=PATIENCE)
    joined = open_store("127.0.0.1", opened.port, None, is_master=False, timeout=PATIENCE)
    joined.set("said", "heard")
    assert opened.get("said") == b"heard"
    # Other tests of this process may have left sockets of their own.
    open_here = open_to_others([psutil.Process()])
    assert not [one for one in open_here if f":{opened.port} " in one]


@pytest.mark.parametrize(("host", "kept"), [("127.0.0.1", True), ("192.0.2.7", False)])
def test_collectives_use_the_interface_of_the_ranks_address(
    monkeypatch: pytest.MonkeyPatch, host: str, kept: bool
) -> None:
    for name in INTERFACE_VARIABLES:
        monkeypatch.setenv(name, "")  # put back after the test
        monkeypatch.delenv(name)
    listen_on_interface_of(host)
    assert [os.environ.get(name) for name in INTERFACE_VARIABLES] == [("lo" if kept else None)] * 2
