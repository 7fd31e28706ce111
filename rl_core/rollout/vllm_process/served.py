"""A vLLM server of somebody else, by its completions endpoint, in place of a `VllmServer`.

It is started with VLLM_SERVER_DEV_MODE=1, which opens `/collective_rpc` and `/reset_prefix_cache`,
and with `--logprobs-mode processed_logprobs --generation-config vllm`. Weights travel through a
folder that both sides see: a file of the new weights is put in the place of the old one, and the
server loads it between two rollouts.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_core.errors import RecipeError, Unreachable, WorkerError
from rl_core.rollout.vllm_process.server import Drawn, Names, Prompt, check_files
from schemas.sections.sampling import SamplingConfig

if TYPE_CHECKING:
    from rl_core.models.export.checksums import Checksum

CONFIG, WEIGHTS = "config.json", "model.safetensors"
AT_ONCE = 64
"""Number of requests under way at once; the server batches them."""


class ServedVllm:
    """A model on a vLLM server. Args: url: its address, without `/v1`. folder: seen by both sides;
    this rank's own. config: content of `config.json`. weights: path of a safetensors file under the
    names of the checkpoint. max_length: longest prompt plus reply in tokens. method: of the
    server's workers, which loads the weights of a folder.

    Its methods raise RecipeError when the server is not as needed, and Unreachable when it does not
    answer or fails.
    """

    def __init__(
        self,
        url: str,
        folder: Path,
        config: Mapping[str, object],
        weights: str,
        max_length: int,
        timeout_s: float,
        method: str = "reload_weights",
    ) -> None:
        import httpx

        self.url, self.folder, self.weights = url.rstrip("/"), folder, weights
        self.method, self.max_length, self.model = method, max_length, ""
        self._loaded_by: str | None = None
        """Process of the server that loaded the weights."""
        limits = httpx.Limits(max_connections=AT_ONCE)
        self._http = httpx.Client(trust_env=False, timeout=timeout_s, limits=limits)
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / CONFIG).write_text(json.dumps(config), encoding="utf-8")

    def connect(self) -> None:
        """Ask the server for its model, which the requests name."""
        (model, *_) = self._get("/v1/models")["data"]
        self.model = model["id"]
        if (model.get("max_model_len") or self.max_length) < self.max_length:
            raise RecipeError(
                f"rollout.server.urls: {self.url} takes {model['max_model_len']} tokens, the run "
                f"needs {self.max_length}: start it with --max-model-len {self.max_length}, or "
                "lower rollout.max_context_length"
            )

    def call(self, method: str, *args: object) -> Any:
        """Call a method, as of an object in another process."""
        return getattr(self, method)(*args)

    def begin(self) -> None:
        """Drop the cache of earlier rollouts, so that a repeat is equal."""
        self._post("/reset_prefix_cache", None)

    def renewed(self) -> bool:
        """Have a server that was started again since it loaded the weights, and so has its first
        ones, load them once more. Returns: True if it was."""
        if self._loaded_by is None or self._process() == self._loaded_by:
            return False
        self.load()
        return True

    def generate(
        self,
        prompts: Sequence[Prompt],
        temperature: float,
        eos_ids: Sequence[int],
        choice: SamplingConfig,
    ) -> list[Drawn]:
        """Return replies to every prompt in order, group by group. Args: as of `VllmServer`."""

        def ask(prompt: Prompt) -> list[Drawn]:
            return self.replies(prompt, temperature, eos_ids, choice)

        with ThreadPoolExecutor(AT_ONCE) as pool:
            return [one for drawn in pool.map(ask, prompts) for one in drawn]

    def replies(
        self, prompt: Prompt, temperature: float, eos_ids: Sequence[int], choice: SamplingConfig
    ) -> list[Drawn]:
        """Return the replies to one prompt; may be called from several threads."""
        body = {
            "model": self.model,
            "prompt": prompt.token_ids,
            # Greedy siblings are equal.
            "n": prompt.num_replies if temperature else 1,
            "temperature": temperature,
            "max_tokens": prompt.max_new_tokens,
            "seed": prompt.seed if temperature else None,
            "stop_token_ids": list(eos_ids),
            "ignore_eos": True,
            "logprobs": 0,
            "return_token_ids": True,
            "repetition_penalty": choice.repetition_penalty,
            "min_tokens": min(choice.min_new_tokens, prompt.max_new_tokens),
            "stop": list(prompt.stop),
            "include_stop_str_in_output": True,
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
        }
        said = sorted(self._post("/v1/completions", body)["choices"], key=lambda one: one["index"])
        drawn = [_drawn(one) for one in said]
        return drawn if temperature else drawn * prompt.num_replies

    def reload(self, expected: Mapping[Names, Checksum], dtype: str, where: str) -> None:
        """Have the server load the weights that the file now holds.

        Args: as of `VllmServer`. Raises: WeightMismatch before anything is loaded.
        """
        self.pass_on(expected, dtype, where)
        self.load()

    def pass_on(self, expected: Mapping[Names, Checksum], dtype: str, where: str) -> None:
        """Put the weights that the file now holds into the folder. Args and errors: as of
        `reload`."""
        check_files([self.weights], expected, dtype, where)
        new = self.folder / f".new-{WEIGHTS}"
        shutil.copyfile(self.weights, new)
        os.replace(new, self.folder / WEIGHTS)

    def load(self) -> None:
        """Have the server load the weights of the folder."""
        self.connect()  # it may be another one since
        reload = {"method": self.method, "kwargs": {"weights_path": str(self.folder)}}
        process = self._process()
        self._post("/collective_rpc", reload)
        self._post("/reset_prefix_cache", None)
        self._loaded_by = process

    def close(self) -> None:
        """Close the connections; the server stays."""
        self._http.close()

    def _process(self) -> str:
        """Return what tells the server's present process from an earlier one."""
        info = self._get("/server_info?config_format=json")
        try:
            return str(info["vllm_config"]["instance_id"])
        except (KeyError, TypeError) as error:
            raise RecipeError(
                f"{self.url}/server_info names no instance_id, without which a restart of the "
                "server would go unnoticed; use vLLM 0.32 or newer"
            ) from error

    def _get(self, path: str) -> Any:
        return self._answer("GET", path, None)

    def _post(self, path: str, body: object) -> Any:
        return self._answer("POST", path, body)

    def _answer(self, verb: str, path: str, body: object) -> Any:
        import httpx

        try:
            response = self._http.request(verb, f"{self.url}{path}", json=body)
        except httpx.HTTPError as error:
            raise Unreachable(f"{self.url}{path} does not answer: {error}") from error
        if response.status_code == httpx.codes.NOT_FOUND and not path.startswith("/v1"):
            raise RecipeError(
                f"{self.url} has no {path}: start the vLLM server with VLLM_SERVER_DEV_MODE=1"
            )
        if not response.is_success:
            answered = f"{self.url}{path} answered {response.status_code}"
            said = f"{answered}: {response.text.strip()[:300]}"
            raise Unreachable(said) if response.is_server_error else WorkerError(said)
        return response.json() if response.content else None


def _drawn(choice: Mapping[str, Any]) -> Drawn:
    ended = choice["finish_reason"] == "stop"
    by_string = isinstance(choice["stop_reason"], str)
    log_probs = [float(one) for one in choice["logprobs"]["token_logprobs"]]
    return Drawn(list(choice["token_ids"]), log_probs, ended and not by_string, ended and by_string)
