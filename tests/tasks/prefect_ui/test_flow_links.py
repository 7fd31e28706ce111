"""Stored links lead to servers that stay, and to no other."""

from types import SimpleNamespace

import pytest

from rl_core.services.exposure import LOCAL_API
from tasks.prefect_ui import flow_links

PAGE = "http://127.0.0.1:4200/flow-runs/flow-run/7"


@pytest.mark.parametrize(
    ("url", "own", "kept"),
    [
        (PAGE, None, PAGE),
        (PAGE, "http://127.0.0.1:4200/api", ""),
        (PAGE, "http://127.0.0.1:42000/api", PAGE),
        (PAGE, "http://127.0.0.1:420/api", PAGE),
        ("None/flow-runs/flow-run/7", None, ""),
        (None, None, ""),
    ],
)
def test_a_page_of_the_runs_own_server_is_not_stored(
    monkeypatch: pytest.MonkeyPatch, url: str | None, own: str | None, kept: str
) -> None:
    monkeypatch.setattr(flow_links, "flow_run", SimpleNamespace(ui_url=url, id="7", tags=()))
    monkeypatch.delenv(LOCAL_API, raising=False)
    if own is not None:
        monkeypatch.setenv(LOCAL_API, own)
    tags = {"prefect.flow_run_id": "7", "prefect.flow_run_url": kept}
    assert flow_links.flow_run_tags() == tags == flow_links.page_tags()
