"""Prefect's API server as this project starts it: closed to pages of other sites, with a page that
logs a browser in."""

from prefect.server.api.server import create_app as prefect_app

from rl_core.services.login_page import WithLoginPage
from rl_core.services.own_pages import App, OwnPagesOnly, hosts_served


def create_app() -> App:
    """Return the server's app. `RL_TRAIN_ALLOWED_HOSTS` names the hosts under which it may be
    addressed, besides this machine's own names."""
    return OwnPagesOnly(WithLoginPage(prefect_app()), hosts_served())
