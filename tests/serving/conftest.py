"""A real server on a free port of this machine, and the unmodified OpenAI client."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import openai
import pytest
import uvicorn

from rl_core.envs.calls.forms import ToolFormat
from rl_core.serving.app import build_app
from rl_core.serving.batching import InProcessEngine
from rl_core.serving.endpoint import Endpoint
from rl_core.serving.engine import Engine
from rl_core.serving.loading import load_endpoint
from schemas.sections.policy import ModelConfig

NAME = "models:/tiny@champion"


@dataclass
class Running:
    """A server that runs, with its endpoint."""

    url: str
    endpoint: Endpoint

    @property
    def engine(self) -> InProcessEngine:
        assert isinstance(self.endpoint.engine, InProcessEngine)
        return self.endpoint.engine

    def client(self, **options: Any) -> openai.OpenAI:
        options = {"api_key": "none", "max_retries": 0, "timeout": 60} | options
        return openai.OpenAI(base_url=f"{self.url}/v1", **options)


@contextmanager
def running(
    folder: Path,
    *,
    exact: bool = False,
    api_key: str | None = None,
    engine: Engine | None = None,
    **options: Any,
) -> Iterator[Running]:
    """Serve a model for the block. Args: engine: takes the place of the model's own."""
    config = ModelConfig(path=str(folder), exact=exact)
    options = {"name": NAME, "tool_format": ToolFormat.HERMES} | options
    endpoint = load_endpoint(str(folder), config, "cpu", **options)
    if engine is not None:
        endpoint.engine.close()
        endpoint = replace(endpoint, engine=engine)
    server = uvicorn.Server(uvicorn.Config(build_app(endpoint, api_key), log_level="warning"))
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        yield Running(f"http://127.0.0.1:{listener.getsockname()[1]}", endpoint)
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


@pytest.fixture(scope="session")
def served(tiny_model_dir: Path) -> Iterator[Running]:
    with running(tiny_model_dir) as server:
        yield server


@pytest.fixture(scope="session")
def seeing(tiny_vlm_dir: Path) -> Iterator[Running]:
    """A server of a vision-language model."""
    with running(tiny_vlm_dir) as server:
        yield server


@pytest.fixture(scope="session")
def exactly_served(tiny_model_dir: Path) -> Iterator[Running]:
    with running(tiny_model_dir, exact=True, max_rows=16) as server:
        yield server
