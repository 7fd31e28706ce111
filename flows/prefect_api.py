"""Prefect's API server as this project starts it: closed to pages of other sites."""

import os

from prefect.server.api.server import create_app as prefect_app

from rl_core.services.own_pages import LOCAL_HOSTS, App, OwnPagesOnly


def create_app() -> App:
    """Return the server's app. `RL_TRAIN_ALLOWED_HOSTS` names the hosts under which it may be
    addressed, besides this machine's own names."""
    named = os.environ.get("RL_TRAIN_ALLOWED_HOSTS", "").split(",")
    return OwnPagesOnly(prefect_app(), [*LOCAL_HOSTS, *filter(None, map(str.strip, named))])
