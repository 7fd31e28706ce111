"""SIGTERM in every phase of a run: it ends within seconds, says how to go on, leaves no process,
and the same command goes on to the end of a run that nothing disturbed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import Run
from tests.e2e.outcomes import assert_identical, held_out_scores, trained_weights
from tests.processes import still_running

pytestmark = [pytest.mark.slow, pytest.mark.long]

PHASES = (
    "starting the Prefect API",
    "validate-data done",
    "prepare-cache built",
    "start workers",
    "evaluate",
    "evaluate baseline",
    "step   2/",
    "save",
    "step   5/",
    "export",
    "evaluate final",
)
"""What the run says last before its signal, each time later in the run; a phase follows it."""
ENDS_S = 15.0


def test_a_run_that_gets_a_signal_in_every_phase_ends_as_if_it_had_got_none(
    start: Callable[..., Run], tiny_recipe: Path, undisturbed: Path, tmp_path: Path
) -> None:
    home, too_long = tmp_path / "home", dict[str, float]()
    for phase in PHASES:
        run = start(tiny_recipe, home)
        run.wait_for(phase)
        below = run.descendants()
        began = time.monotonic()
        # To the whole group, as `timeout`, systemd and Slurm do.
        os.killpg(run.process.pid, signal.SIGTERM)
        assert run.finish() == 130, f"in {phase}: {run.output}"
        if (took := time.monotonic() - began) > ENDS_S:
            too_long[phase] = took
        assert "Traceback" not in run.output, phase
        assert not still_running(below), phase
    assert not too_long

    last = start(tiny_recipe, home)
    assert last.finish() == 0, last.output
    assert_identical(trained_weights(home), trained_weights(undisturbed))
    assert held_out_scores(home) == held_out_scores(undisturbed)
