"""What an environment raises is said with its line, and tried again only where that may help."""

import json

import pytest

from rl_core.envs.faults import described, no_verdicts
from rl_core.errors import BrokenCode, RewardError, UserError


def raised(error: Exception | None) -> str:
    """What is said of an error of this file, or of one inside the standard library."""
    try:
        if error is None:
            json.loads("{")
        else:
            raise error
    except Exception as caught:
        return described(caught)
    raise AssertionError


def test_an_error_is_said_with_the_line_of_the_users_code():
    assert raised(KeyError("a")).startswith("KeyError: 'a' (test_faults.py:")
    assert "(test_faults.py:" in raised(None), "not the line of the library that it called"


@pytest.mark.parametrize(
    ("errors", "kind"),
    [
        ([ZeroDivisionError("no"), TypeError("no")], BrokenCode),
        ([ZeroDivisionError("no"), ConnectionError("no")], RewardError),
        ([TimeoutError("KeyError: 3")], RewardError),
        ([], RewardError),
    ],
)
def test_what_the_same_code_raises_again_is_the_users_fault(errors: list[Exception], kind: type):
    reasons = [f"prompt:{number}: {raised(error)}" for number, error in enumerate(errors)]
    found = no_verdicts("none", reasons)
    assert type(found) is kind and isinstance(found, RewardError)
    assert isinstance(found, UserError) is (kind is BrokenCode)


def test_what_this_project_refuses_is_no_fault_of_the_users_code():
    assert type(no_verdicts("none", ["prompt:a: EnvError: row 3: no ground truth"])) is RewardError
