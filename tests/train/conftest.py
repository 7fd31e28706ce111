"""Real ranks, started once for all tests of the train stack."""

from collections.abc import Iterator

import pytest

from tests.train.ranks import Ranks


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """Two processes that form gloo groups of one or two (about eight seconds to start, at the first job)."""
    with Ranks() as started:
        yield started
