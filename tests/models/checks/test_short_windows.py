"""Windows of attention are short while a model is judged, wherever the model keeps their length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rl_core.models.checks.short_windows import SHORT, short_windows
from tests.models.checks.test_probe import saved


def windows(model: Any) -> list[int]:
    """Of the config and of every module that keeps one of its own."""
    held = [vars(module).get("sliding_window") for module in model.modules()]
    return [model.config.sliding_window, *(one for one in held if isinstance(one, int))]


def test_windows_are_short_in_config_and_modules_for_the_block_and_long_again_after_an_error(
    tmp_path: Path,
) -> None:
    model = saved("gemma2", tmp_path, sliding_window=1000)
    before = windows(model)
    assert len(before) > 1 and set(before) == {1000}
    with pytest.raises(KeyError), short_windows(model):
        assert windows(model) == [SHORT] * len(before)
        raise KeyError
    assert windows(model) == before


def test_a_window_that_is_short_already_stays(tmp_path: Path) -> None:
    model = saved("gemma2", tmp_path, sliding_window=SHORT - 1)
    with short_windows(model):
        assert set(windows(model)) == {SHORT - 1}
