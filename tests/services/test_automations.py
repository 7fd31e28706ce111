"""Prefect takes the automations that ship as comments, once they are switched on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml
from prefect.events.schemas.automations import AutomationCore
from prefect.server.utilities.user_templates import render_user_template_sync

from tasks.prefect_ui.champion_events import EVENT as CHAMPION
from tasks.prefect_ui.watch_events import EVENT as WATCH

FILE = Path(__file__).resolve().parents[2] / "deployments" / "automations.yaml"


def switched_on() -> list[dict[str, Any]]:
    """What the whole file says once the comment signs before its blocks are gone."""
    head, key, blocks = FILE.read_text(encoding="utf-8").partition("automations:\n")
    bare = re.sub(r"^# ?", "", blocks, flags=re.MULTILINE)
    return yaml.safe_load(head + key + bare.replace("BLOCK_ID", str(uuid4())))["automations"]


def test_nothing_is_switched_on():
    assert yaml.safe_load(FILE.read_text(encoding="utf-8")) == {"automations": None}


@pytest.mark.parametrize("values", switched_on(), ids=lambda values: str(values["name"]))
def test_prefect_takes_each(values: dict[str, Any]):
    made = AutomationCore.model_validate(values)
    assert made.enabled and made.actions[0].type == "send-notification"


def test_each_waits_for_an_event_that_there_is():
    expected = [next(iter(values["trigger"]["expect"])) for values in switched_on()]
    assert expected == ["prefect.flow-run.Failed", CHAMPION, f"{WATCH}.*"]


@pytest.mark.parametrize(
    ("before", "said"), [(None, "the first one: it"), (3, "instead of v3: it")]
)
def test_the_text_says_what_a_champion_replaced(before: int | None, said: str):
    (values,) = [one for one in switched_on() if one["trigger"]["expect"] == [CHAMPION]]
    payload = {"before": before, "reason": "it is better", "by": "ann"}
    context = {"event": {"payload": payload}}
    body = render_user_template_sync(values["actions"][0]["body"], context)
    assert body == f"{said} is better (by ann)"
