"""A value that Prefect refuses for a setting of its own ends a command in a sentence."""

from __future__ import annotations

import tomllib

import pytest
from prefect.settings import Settings

from flows.prefect_settings import refused_setting


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PREFECT_LOGGING_LEVEL", "NOSUCH"),
        ("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "abc"),
        ("PREFECT_CLIENT_MAX_RETRIES", "-x"),
    ],
)
def test_a_refused_value_is_named_with_its_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError) as refused:
        Settings()
    said = refused_setting(refused.value)
    assert said is not None and said.startswith(f"{name}: got {value!r}; Input should be ")


def test_a_damaged_file_of_profiles_is_named() -> None:
    with pytest.raises(ValueError) as refused:
        tomllib.loads("[[[")
    said = refused_setting(refused.value)
    assert said is not None and "profiles.toml" in said and "is no TOML" in said


def test_other_errors_are_left_alone() -> None:
    with pytest.raises(ValueError) as other:
        int("x")
    assert refused_setting(other.value) is None
