"""`rl-train serve-search`: the retrieval server that the search environments ask."""

from pathlib import Path
from typing import Annotated

import typer


def serve_search(
    corpus: Annotated[Path, typer.Argument(help="JSONL: contents, or title and text, per line; id is kept")],
    host: Annotated[str, typer.Option(help="Address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one", min=0, max=65535)] = 8000,
) -> None:
    """Serve a corpus to the search environments, with BM25; ends on Ctrl-C."""
    import socket

    import uvicorn

    from rl_core.envs.tools.search_server import Corpus, build_app
    from rl_core.errors import EnvError

    app = build_app(Corpus.read(corpus))
    try:
        listener = socket.create_server((host, port))
    except OSError as error:
        raise EnvError(f"cannot listen on {host}:{port}: {error}; give another --port") from error
    with listener:
        address = f"http://{host}:{listener.getsockname()[1]}/retrieve"
        typer.echo(f"serving {corpus}; set environments.search.search_url to {address}")
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])
