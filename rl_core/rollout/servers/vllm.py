"""A vLLM server, by its completions endpoint.

It is started with VLLM_SERVER_DEV_MODE=1, which opens `/collective_rpc` and `/reset_prefix_cache`,
and with `--logprobs-mode processed_logprobs --generation-config vllm`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_core.errors import RecipeError, Unreachable
from rl_core.rollout.servers.served import Served
from rl_core.rollout.vllm_process.server import Drawn, Prompt
from schemas.sections.sampling import SamplingConfig

RELOAD = "reload_weights"
"""vLLM's own method of its workers that loads the weights of a folder."""


class ServedVllm(Served):
    """A model on a vLLM server. Args: method: of the server's workers, which loads the weights of a
    folder; None takes vLLM's own. The others as of `Served`."""

    length_option = "--max-model-len"
    without_path = "start the vLLM server with VLLM_SERVER_DEV_MODE=1"

    def __init__(
        self,
        url: str,
        folder: Path,
        config: Mapping[str, object],
        weights: str,
        max_length: int,
        timeout_s: float,
        method: str | None = None,
    ) -> None:
        super().__init__(url, folder, config, weights, max_length, timeout_s)
        self.method = method or RELOAD

    def begin(self) -> None:
        self.post("/reset_prefix_cache", None)

    def replies(
        self, prompt: Prompt, temperature: float, eos_ids: Sequence[int], choice: SamplingConfig
    ) -> list[Drawn]:
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
        said = sorted(self.post("/v1/completions", body)["choices"], key=lambda one: one["index"])
        for one in said:
            if one["finish_reason"] not in ("stop", "length"):
                raise Unreachable(f"{self.url} gave up a request: {one['finish_reason']}")
        drawn = [_drawn(one) for one in said]
        return drawn if temperature else drawn * prompt.num_replies

    def load(self) -> None:
        self.connect()  # it may be another one since
        reload = {"method": self.method, "kwargs": {"weights_path": str(self.folder)}}
        state = self.state()
        self.post("/collective_rpc", reload)
        self.post("/reset_prefix_cache", None)
        self.loaded = state

    def state(self) -> str:
        """Return what tells the server's present process from an earlier one."""
        info = self.get("/server_info?config_format=json")
        try:
            return str(info["vllm_config"]["instance_id"])
        except (KeyError, TypeError) as error:
            raise RecipeError(
                f"{self.url}/server_info names no instance_id, without which a restart of the "
                "server would go unnoticed; use vLLM 0.32 or newer"
            ) from error


def _drawn(choice: Mapping[str, Any]) -> Drawn:
    ended = choice["finish_reason"] == "stop"
    by_string = isinstance(choice["stop_reason"], str)
    log_probs = [float(one) for one in choice["logprobs"]["token_logprobs"]]
    return Drawn(list(choice["token_ids"]), log_probs, ended and not by_string, ended and by_string)
