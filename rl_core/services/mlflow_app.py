"""MLflow's server as this project starts it on one machine: open to those who know the home's key,
and closed to pages of other sites."""

from __future__ import annotations

from rl_core.runtime.home import Home
from rl_core.runtime.home_keys import MLFLOW_SERVER, key_of
from rl_core.services.key_required import KeyRequired
from rl_core.services.own_pages import App, OwnPagesOnly, hosts_served
from rl_core.tracking.server_app import server_app


def create_app() -> App:
    """Return the server's app over the database of `RL_TRAIN_HOME`."""
    home = Home.default()
    app = server_app(home.mlflow_uri, home.mlflow_artifacts.as_uri())
    asking = KeyRequired(app, key_of(home.root, MLFLOW_SERVER), MLFLOW_SERVER)
    return OwnPagesOnly(asking, hosts_served())
