"""The commands `rl-train serve`, `serve-search`, `serve-rewards` and `serve-demo`: a model behind
OpenAI's API, servers for runs, and a page to try models on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, overload

import typer

from rl_core.envs.calls.forms import ToolFormat

if TYPE_CHECKING:
    from rl_core.services.own_pages import App
    from schemas.sections.rewards import RewardServiceConfig


def serve(
    model: Annotated[
        str,
        typer.Argument(
            help="models:/NAME@champion, models:/NAME/VERSION, RUN@ITERATION, or as model.path"
        ),
    ],
    recipe: Annotated[
        str | None, typer.Option(help="Of a model that is no registered version: its chat template")
    ] = None,
    served_model: Annotated[
        str | None, typer.Option(help="Name of the model in requests; unset: as MODEL")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0 takes a free one", min=0, max=65535)
    ] = 8003,
    device: Annotated[
        str, typer.Option(help="Where the model computes: cpu, cuda, cuda:1, ...")
    ] = "cpu",
    max_rows: Annotated[
        int, typer.Option(help="Replies that are sampled at once", min=1, max=1024)
    ] = 32,
    max_waiting: Annotated[
        int, typer.Option(help="Requests that wait; others are answered with 429", min=1)
    ] = 128,
    exact: Annotated[
        bool,
        typer.Option("--exact", help="The same bits whatever else is asked at once; slower, CPU"),
    ] = False,
    tool_format: Annotated[
        ToolFormat | None,
        typer.Option(help="How the model writes calls of tools; unset: from its chat template"),
    ] = None,
) -> None:
    """Serve a language model behind OpenAI's API, with continuous batching; ends on Ctrl-C.

    RL_TRAIN_API_KEY sets the key that requests have to bring; it is needed to let others in.
    """
    from rl_core.runs.versions.served_weights import find_served
    from rl_core.runtime.home import Home
    from rl_core.serving.app import build_app
    from rl_core.serving.loading import load_endpoint

    api_key = _api_key(host)
    _check_device(device)
    found = find_served(model, recipe, Home.default())
    config = found.config.model_copy(update={"exact": exact})
    typer.echo(f"loading {found.name}")
    endpoint = load_endpoint(
        found.source,
        config,
        device,
        name=served_model or model,
        tool_format=tool_format,
        max_rows=max_rows,
        max_waiting=max_waiting,
    )
    try:
        _serve(
            build_app(endpoint, api_key),
            host,
            port,
            lambda at: f"{endpoint.name} answers at {at}/v1",
        )
    finally:
        endpoint.engine.close()


def serve_search(
    corpus: Annotated[
        Path, typer.Argument(help="JSONL: contents, or title and text, per line; id is kept")
    ],
    host: Annotated[str, typer.Option(help="Address to listen on")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0 takes a free one", min=0, max=65535)
    ] = 8000,
) -> None:
    """Serve a corpus to the search environments, with BM25; ends on Ctrl-C. It asks for no key."""
    from rl_core.envs.tools.search_server import Corpus, build_app

    app = build_app(Corpus.read(corpus))
    _serve(
        app,
        host,
        port,
        lambda at: f"serving {corpus}; set environments.search.search_url to {at}/retrieve",
    )


def serve_rewards(
    recipe: Annotated[
        Path,
        typer.Argument(help="YAML with `rewards: [{name: ..., weight: ...}]`, such as a recipe"),
    ],
    host: Annotated[str, typer.Option(help="Address to listen on")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0 takes a free one", min=0, max=65535)
    ] = 8001,
    device: Annotated[
        str, typer.Option(help="Where models compute: cpu, cuda, cuda:1, ...")
    ] = "cpu",
) -> None:
    """Score samples at POST /score; ends on Ctrl-C.

    Requests have to bring a key: RL_TRAIN_API_KEY, which is needed to let others in, or the home's
    own, which runs of the same home give by themselves.
    """
    from rl_core.errors import RecipeError
    from rl_core.rewards.server import build_app
    from rl_core.rewards.service import RewardService
    from rl_core.runs.versions.scorer_models import blocks_with_folders
    from rl_core.runtime.home import Home
    from rl_core.runtime.home_keys import REWARD_SERVER
    from rl_core.services.key_required import KeyRequired

    key = _api_key(host, REWARD_SERVER)
    blocks, config = _reward_blocks(recipe)
    _check_device(device)
    try:
        blocks = blocks_with_folders(blocks, Home.default())
        service = RewardService(blocks, config, device=device)
    except RecipeError as error:
        raise RecipeError(f"{recipe}: {error}") from error
    try:
        keys = ", ".join(service.asked)
        _serve(
            KeyRequired(build_app(service), key, REWARD_SERVER),
            host,
            port,
            lambda at: f"serving {keys}; use them as {{name: remote, url: {at}}}",
        )
    finally:
        service.close()


def serve_demo(
    model: Annotated[
        str, typer.Argument(help="models:/NAME@champion, models:/NAME/VERSION, or as model.path")
    ],
    against: Annotated[
        str | None,
        typer.Option(
            help="The other model; unset: the newest version, or what the training began with"
        ),
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(help="Of a model that is no registered version")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0 takes a free one", min=0, max=65535)
    ] = 8002,
    device: Annotated[
        str, typer.Option(help="Where models compute: cpu, cuda, cuda:1, ...")
    ] = "cpu",
) -> None:
    """Serve a page to chat or draw with two models side by side; ends on Ctrl-C.

    The address that it prints logs a browser in. RL_TRAIN_API_KEY sets the key, and is needed to
    let others in.
    """
    from rl_core.demo.app import build_app
    from rl_core.demo.contestants import load_demo
    from rl_core.runtime.home import Home
    from rl_core.runtime.home_keys import DEMO_SERVER
    from rl_core.services.key_required import KeyRequired
    from rl_core.services.login_page import login_address

    key = _api_key(host, DEMO_SERVER)
    _check_device(device)
    typer.echo("loading both models")
    demo = load_demo(model, against, recipe, device, Home.default())
    names = " and ".join(one.name for one in demo.contestants)
    _serve(
        KeyRequired(build_app(demo), key, DEMO_SERVER),
        host,
        port,
        lambda at: f"{names} answer at {login_address(at, key)}",
    )


@overload
def _api_key(host: str) -> str | None: ...
@overload
def _api_key(host: str, server: str) -> str: ...
def _api_key(host: str, server: str = "") -> str | None:
    """Return the key that requests have to bring: RL_TRAIN_API_KEY, or the home's own for a kind
    of `server`, where one is named. Raises: ServiceError when others are let in without a key."""
    import os

    from rl_core.errors import ServiceError
    from rl_core.runtime.home import Home
    from rl_core.runtime.home_keys import key_of
    from rl_core.services.exposure import is_local

    if given := os.environ.get("RL_TRAIN_API_KEY"):
        return given
    if not is_local(host):
        raise ServiceError(
            f"--host {host} lets others in: set RL_TRAIN_API_KEY, the key they bring"
        )
    return key_of(Home.default().root, server) if server else None


def _reward_blocks(path: Path) -> tuple[list[dict[str, object]], RewardServiceConfig]:
    """Read the `rewards` entries and their settings from a file. Raises: RecipeError."""
    from pydantic import ValidationError

    from rl_core.errors import RecipeError
    from rl_core.runtime.registry import describe_validation_error
    from rl_core.runtime.settings_files import merge_overrides, read_yaml, resolved
    from rl_core.runtime.user_paths import no_file
    from schemas.sections.rewards import RewardServiceConfig

    if not path.is_file():
        raise RecipeError(f"{path}: {no_file(path)}; give a YAML file with a list `rewards`")
    values = resolved(merge_overrides(read_yaml(path), (), path), path)
    blocks = values.get("rewards")
    if (
        not isinstance(blocks, list)
        or not blocks
        or not all(isinstance(block, dict) for block in blocks)
    ):
        raise RecipeError(
            f"{path}: rewards: expected a list of entries {{name: ..., weight: ...}}, got "
            f"{blocks!r:.100}"
        )
    try:
        return blocks, RewardServiceConfig.model_validate(values.get("reward_service") or {})
    except ValidationError as error:
        raise RecipeError(
            describe_validation_error(error, f"{path}: reward_service", RewardServiceConfig)
        ) from error


def _check_device(device: str) -> None:
    """Raises: RecipeError when this machine has no such device."""
    import torch

    from rl_core.errors import RecipeError

    try:
        named = torch.device(device)
    except RuntimeError as error:
        raise RecipeError(f"--device {device!r}: expected cpu, cuda or cuda:NUMBER") from error
    count = torch.cuda.device_count()
    if named.type == "cuda" and (named.index or 0) >= count:
        raise RecipeError(f"--device {device}: this machine has {count} such devices")


def _serve(app: App, host: str, port: int, told: Callable[[str], str]) -> None:
    """Listen until Ctrl-C; pages of other sites are refused.

    Args: told: returns the message to print for an address. Raises: EnvError when it cannot listen.
    """
    import socket

    import uvicorn

    from rl_core.errors import EnvError
    from rl_core.services.exposure import is_local
    from rl_core.services.own_pages import ANY_HOST, OwnPagesOnly, hosts_served

    if not host.strip():
        raise EnvError("--host: empty, which would let others in; name an address to listen on")
    try:
        listener = socket.create_server((host, port))
    except OSError as error:
        raise EnvError(f"cannot listen on {host}:{port}: {error}; give another --port") from error
    with listener:
        typer.echo(told(f"http://{host}:{listener.getsockname()[1]}"))
        closed = OwnPagesOnly(app, hosts_served() if is_local(host) else [ANY_HOST])
        uvicorn.Server(uvicorn.Config(closed, log_level="warning")).run(sockets=[listener])
