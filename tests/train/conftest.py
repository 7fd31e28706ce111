"""Real ranks for the tests of the train stack."""

from collections.abc import Iterator

import pytest

from tests.train.ranks import Ranks


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    """Two processes that form gloo groups of one or two; the first module to ask waits about eight
    seconds."""
    with Ranks() as started:
        yield started
