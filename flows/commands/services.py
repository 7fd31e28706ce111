"""The commands `rl-train up`, `status` and `down` for the services of this machine, and `deploy`
for a server elsewhere."""

import shlex
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from flows.lists.listing import Entry, Json, print_list
from rl_core.runtime.home import Home
from rl_core.services.addresses import Server, check_addresses

if TYPE_CHECKING:
    from rl_core.services.all_services import Stack

NOT_RUNNING = 1


def up(
    host: Annotated[
        str, typer.Option(help="Where to listen; any but this machine's own needs passwords")
    ] = "127.0.0.1",
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay, and stop everything on Ctrl-C")
    ] = False,
) -> None:
    """Start Prefect server, MLflow server, work pools, deployments and workers; running services
    are left alone."""
    import signal

    # Ended half-way, it stops what it has started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    check_addresses(Server.MLFLOW)
    stack = _stack()
    stack.up(host)
    typer.echo(
        'runs are started with: eval "$(rl-train status --env)"; prefect deployment run '
        "rl-train/text --watch"
    )
    typer.echo("the UIs open with: rl-train open, and rl-train open mlflow")
    if foreground:
        _stay(stack)


def status(
    env: Annotated[
        bool, typer.Option("--env", help="Print the exports that let commands find the services")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show the services and their addresses; exit code 1 if one does not work."""
    from rl_core.services.service import State

    if env:
        home = Home.default().environment()
        for name in ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING", "RL_TRAIN_HOME"):
            typer.echo(
                f"export {name}={shlex.quote(home[name])}" if name in home else f"unset {name}"
            )
        return
    found = _stack().status()
    entries: list[Entry] = []
    for one in found:
        place = one.record
        where = {} if place is None else {"url": place.url, "pid": place.pid, "log": place.log}
        entries.append({"service": one.name, "state": str(one.state), **where})
    if found or as_json:
        print_list("Services", ("service", "state", "url", "pid", "log"), entries, as_json)
    if not found and not as_json:
        typer.echo("nothing runs; rl-train up starts it")
    if not found or any(one.state is not State.RUNNING for one in found):
        raise typer.Exit(NOT_RUNNING)


class Ui(StrEnum):
    """A server of `rl-train up` with pages for a browser."""

    PREFECT = "prefect"
    MLFLOW = "mlflow"


def open_ui(
    server: Annotated[Ui, typer.Argument(help="Whose pages")] = Ui.PREFECT,
    show: Annotated[
        bool, typer.Option("--show", help="Print the address and open no browser")
    ] = False,
) -> None:
    """Open the Prefect or MLflow UI of `rl-train up` in a browser, logged in.

    The address holds a key of the home: whoever has Prefect's can start runs here, and whoever has
    MLflow's can change what it recorded.
    """
    import webbrowser

    from rl_core.errors import ServiceError
    from rl_core.runtime.home_keys import MLFLOW_SERVER, key_of, prefect_password
    from rl_core.services.login_page import login_address

    home = Home.default()
    if server is Ui.MLFLOW:
        if home.mlflow_uri.startswith("http"):
            raise ServiceError(
                f"MLflow is the one at MLFLOW_TRACKING_URI, {home.mlflow_uri}: open that address"
            )
        url, key = home.mlflow_ui, key_of(home.root, MLFLOW_SERVER)
    else:
        url, key = home.prefect_ui, prefect_password(home.root)
    if not url:
        raise ServiceError(f"no {server.value} server of {home.root} runs: rl-train up")
    address = login_address(url, key)
    if show or not webbrowser.open(address):
        typer.echo(address)


def down() -> None:
    """Stop everything that `up` started; data and logs stay."""
    if not _stack().down():
        typer.echo("nothing was running")


def deploy(
    recipe: Annotated[
        str | None, typer.Argument(help="A .yaml path of your own; unset: all that is shipped")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the deployment; unset: the recipe's own")
    ] = None,
    profile: Annotated[
        str | None, typer.Option(help="Placement: cpu, one_gpu, one_node, many_nodes")
    ] = None,
    cron: Annotated[
        str | None, typer.Option(help="When it runs by itself, in UTC, e.g. '0 3 * * 1'")
    ] = None,
) -> None:
    """Create work pools and deployments on a Prefect server that already runs: all that is shipped,
    or one of a recipe of your own.

    The server is that of `rl-train up`, or the one at PREFECT_API_URL.
    """
    import os

    from rl_core.errors import ServiceError

    entry = _own_entry(recipe, name, profile, cron)
    api = os.environ.get("PREFECT_API_URL", "")
    if not api:
        raise ServiceError(
            "PREFECT_API_URL is not set: name the server, such as http://prefect:4200/api, or "
            "rl-train up"
        )
    check_addresses(Server.PREFECT)
    _stack().deploy(api.rstrip("/").removesuffix("/api"), entry)
    if entry is not None:
        typer.echo(f"prefect deployment run rl-train/{entry['name']} --watch   # run it")


def _own_entry(
    recipe: str | None, name: str | None, profile: str | None, cron: str | None
) -> "dict[str, object] | None":
    """Return the deployment of a recipe that can be run, or None without one. Raises: UserError."""
    from rl_core.errors import RecipeError
    from rl_core.runs.chain.chains import is_chain, load_chain
    from rl_core.runs.recipes import find_recipe, load_recipe
    from rl_core.services.own_deployment import own_deployment

    if recipe is None:
        for option, value in (("--name", name), ("--profile", profile), ("--cron", cron)):
            if value is not None:
                raise RecipeError(f"{option} {value}: name the recipe that it is for")
        return None
    load = load_chain if is_chain(recipe) else load_recipe
    loaded = load(recipe, (), profile)
    if cron is not None:
        _check_cron(cron)
    return own_deployment(find_recipe(recipe), name or loaded.name, profile, cron)


def _check_cron(cron: str) -> None:
    from prefect.client.schemas.schedules import CronSchedule

    from rl_core.errors import RecipeError

    try:
        CronSchedule(cron=cron)
    except ValueError as error:
        raise RecipeError(
            f"--cron {cron!r}: expected minute, hour, day, month and weekday, such as '0 3 * * 1'"
        ) from error


def _stack() -> "Stack":
    from rl_core.services.all_services import Stack

    return Stack(Home.default(), typer.echo)


def _stay(stack: "Stack") -> None:
    """Wait for Ctrl-C, SIGTERM, or the end of a service; then stop all services."""
    import signal
    import threading

    asked = threading.Event()
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, lambda *_: asked.set())
    typer.echo("everything runs; Ctrl-C stops it")
    while not asked.wait(2.0):
        ended = stack.ended()
        if ended:
            typer.echo(f"{', '.join(ended)} ended by itself; see {Home.default().logs}", err=True)
            stack.down()
            raise typer.Exit(NOT_RUNNING)
    stack.down()
