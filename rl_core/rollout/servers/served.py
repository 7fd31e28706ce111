"""A server of somebody else that samples, by HTTP: what vLLM's and SGLang's have in common.

Weights travel through a folder that both sides see: a file of the new weights is put in the place
of the old one, and the server loads it between two rollouts.
"""

from __future__ import annotations

import json
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_core.errors import RecipeError, Unreachable, WorkerError
from rl_core.rollout.vllm_process.server import Drawn, Names, Prompt, check_files
from schemas.sections.sampling import SamplingConfig

if TYPE_CHECKING:
    import httpx

    from rl_core.models.export.checksums import Checksum

CONFIG, WEIGHTS = "config.json", "model.safetensors"
AT_ONCE = 256
"""Number of requests under way at once; the server batches them."""


class Served(ABC):
    """A model on a server. Args: url: its address, without `/v1`. folder: seen by both sides; this
    rank's own. config: content of `config.json`. weights: path of a safetensors file under the
    names of the checkpoint. max_length: longest prompt plus reply in tokens.

    Its methods raise RecipeError when the server is not as needed, and Unreachable when it does not
    answer or fails.
    """

    length_option: str
    """Option that starts such a server for a longest prompt plus reply."""
    without_path: str
    """Advice where the server does not have an endpoint."""

    def __init__(
        self,
        url: str,
        folder: Path,
        config: Mapping[str, object],
        weights: str,
        max_length: int,
        timeout_s: float,
    ) -> None:
        import httpx

        self.url, self.folder, self.weights = url.rstrip("/"), folder, weights
        self.max_length, self.timeout_s, self.model = max_length, timeout_s, ""
        self.loaded: str | None = None
        """The server's `state` with the weights that it loaded last."""
        limits = httpx.Limits(max_connections=AT_ONCE)
        self._http = httpx.Client(trust_env=False, timeout=timeout_s, limits=limits)
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / CONFIG).write_text(json.dumps(config), encoding="utf-8")

    def connect(self) -> None:
        """Ask the server for its model, which requests may have to name."""
        (model, *_) = self.get("/v1/models")["data"]
        self.model = model["id"]
        if (model.get("max_model_len") or self.max_length) < self.max_length:
            raise RecipeError(
                f"rollout.server.urls: {self.url} takes {model['max_model_len']} tokens, the run "
                f"needs {self.max_length}: start it with {self.length_option} {self.max_length}, "
                "or lower rollout.max_context_length"
            )

    @abstractmethod
    def begin(self) -> None:
        """Drop the cache of earlier rollouts, so that a repeat is equal."""

    @abstractmethod
    def replies(
        self, prompt: Prompt, temperature: float, eos_ids: Sequence[int], choice: SamplingConfig
    ) -> list[Drawn]:
        """Return the replies to one prompt; may be called from several threads."""

    @abstractmethod
    def load(self) -> None:
        """Have the server load the weights of the folder, and note its state."""

    @abstractmethod
    def state(self) -> str:
        """Return what changes when the server is started again, and so has its first weights."""

    def renewed(self) -> bool:
        """Have a server that was started again since it loaded the weights load them once more.
        Returns: True if it was."""
        if self.loaded is None or self.state() == self.loaded:
            return False
        self.load()
        return True

    def pass_on(self, expected: Mapping[Names, Checksum], dtype: str, where: str) -> None:
        """Put the weights that the file now holds into the folder.

        Args: as of `VllmServer.reload`. Raises: WeightMismatch before anything is written.
        """
        check_files([self.weights], expected, dtype, where)
        new = self.folder / f".new-{WEIGHTS}"
        shutil.copyfile(self.weights, new)
        os.replace(new, self.folder / WEIGHTS)

    def close(self) -> None:
        """Close the connections; the server stays."""
        self._http.close()

    def get(self, path: str) -> Any:
        """Return the answer to a GET request."""
        return self._answer("GET", path, None)

    def post(self, path: str, body: object) -> Any:
        """Return the answer to a POST request."""
        return self._answer("POST", path, body)

    def response(self, verb: str, path: str, body: object) -> httpx.Response:
        """Return the response to a request, which may be a refusal."""
        import httpx

        try:
            response = self._http.request(verb, f"{self.url}{path}", json=body)
        except httpx.HTTPError as error:
            raise Unreachable(f"{self.url}{path} does not answer: {error}") from error
        if response.status_code == httpx.codes.NOT_FOUND and not path.startswith("/v1"):
            raise RecipeError(f"{self.url} has no {path}: {self.without_path}")
        return response

    def check(self, path: str, response: httpx.Response) -> None:
        """Check that a request succeeded. Raises: Unreachable or WorkerError, with what the server
        said."""
        if not response.is_success:
            answered = f"{self.url}{path} answered {response.status_code}"
            said = f"{answered}: {response.text.strip()[:300]}"
            raise Unreachable(said) if response.is_server_error else WorkerError(said)

    def _answer(self, verb: str, path: str, body: object) -> Any:
        response = self.response(verb, path, body)
        self.check(path, response)
        return response.json() if response.content else None
