"""Prefect takes the automations that ship as comments, once they are switched on."""

from __future__ import annotations

import re
from pathlib import Path
from uuid import uuid4

import pytest
import yaml
from prefect.events.schemas.automations import AutomationCore

from tasks.prefect_ui.champion_events import EVENT as CHAMPION
from tasks.prefect_ui.watch_events import EVENT as WATCH

FILE = Path(__file__).resolve().parents[2] / "deployments" / "automations.yaml"


def switched_on() -> list[dict[str, object]]:
    """The blocks of the file without their comment signs."""
    text = FILE.read_text(encoding="utf-8").partition("automations: []")[2]
    bare = re.sub(r"^# ?", "", text, flags=re.MULTILINE)
    return yaml.safe_load(bare.replace("BLOCK_ID", str(uuid4())))


def test_nothing_is_switched_on():
    assert yaml.safe_load(FILE.read_text(encoding="utf-8")) == {"automations": []}


@pytest.mark.parametrize("values", switched_on(), ids=lambda values: str(values["name"]))
def test_prefect_takes_each(values: dict[str, object]):
    made = AutomationCore.model_validate(values)
    assert made.enabled and made.actions[0].type == "send-notification"


def test_each_waits_for_an_event_that_there_is():
    expected = [next(iter(values["trigger"]["expect"])) for values in switched_on()]  # type: ignore[index]
    assert expected == ["prefect.flow-run.Failed", CHAMPION, f"{WATCH}.*"]
