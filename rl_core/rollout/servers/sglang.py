"""An SGLang server, by its own endpoint `/generate`.

Written against the interface of SGLang 0.5 (its `http_server.py`, `io_struct.py` and
`schedule_batch.py`), and tried with a server that answers like it; SGLang itself needs a GPU. A
server heeds the seeds of requests if it is started with `--enable-deterministic-inference`.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from rl_core.errors import RecipeError, Unreachable, WorkerError
from rl_core.rollout.servers.served import Served
from rl_core.rollout.vllm_process.server import MOMENT_S, Drawn, Prompt
from schemas.sections.sampling import SamplingConfig

SEEDS = 2**31
"""Number of seeds that a request may name."""


class ServedSglang(Served):
    """A model on an SGLang server. The label that each load of weights gives them is gone when the
    server is started again."""

    length_option = "--context-length"
    without_path = "rollout.server.kind: sglang needs an SGLang server, 0.5 or newer"

    def connect(self) -> None:
        """Ask the server for its model, and warn when it ignores the seeds of requests."""
        is_first = not self.model
        super().connect()
        info = self.get("/get_server_info")
        if is_first and not info.get("enable_deterministic_inference"):
            logging.getLogger(__name__).warning(
                f"rollout.server.urls: {self.url} ignores the seeds of requests, so that a step "
                "that is repeated samples other replies: start it with "
                "--enable-deterministic-inference"
            )

    def begin(self) -> None:
        """Drop the cache of earlier rollouts, once the server has ended what was given up."""
        self.post("/abort_request", {"rid": "", "abort_all": True})
        ends = time.monotonic() + self.timeout_s
        path = "/flush_cache"
        while True:
            response = self.response("POST", path, None)
            # While a request runs, the cache is kept, and the answer is 400.
            if response.status_code != httpx.codes.BAD_REQUEST or time.monotonic() > ends:
                self.check(path, response)
                return
            time.sleep(MOMENT_S)

    def replies(
        self, prompt: Prompt, temperature: float, eos_ids: Sequence[int], choice: SamplingConfig
    ) -> list[Drawn]:
        common = {
            "temperature": temperature,
            "max_new_tokens": prompt.max_new_tokens,
            "min_new_tokens": min(choice.min_new_tokens, prompt.max_new_tokens),
            # Otherwise those of the model's generation_config.json; others are refused in a recipe.
            "repetition_penalty": 1.0,
            "top_p": 1.0,
            "top_k": -1,
            "min_p": 0.0,
            # `ignore_eos` would leave these out, too.
            "stop_token_ids": list(eos_ids),
            "stop": list(prompt.stop),
            "no_stop_trim": True,
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
        }
        # Greedy siblings are equal; others need a seed each, as equal seeds give equal replies.
        num_asked = prompt.num_replies if temperature else 1
        seeds = [(prompt.seed + sibling) % SEEDS for sibling in range(num_asked)]
        body = {
            "input_ids": [prompt.token_ids] * num_asked,
            "sampling_params": [common | {"sampling_seed": seed} for seed in seeds],
            "return_logprob": True,
            "logprob_start_len": -1,
        }
        drawn = []
        for said in self.post("/generate", body):
            drawn.append(self._drawn(said["meta_info"], prompt.max_new_tokens, eos_ids))
        return drawn if temperature else drawn * prompt.num_replies

    def _drawn(self, info: Mapping[str, Any], limit: int, eos_ids: Sequence[int]) -> Drawn:
        """Return a reply. Args: limit: most tokens of it. Raises: Unreachable when the server gave
        it up; RecipeError when it ended as no reply of this run may; WorkerError."""
        finish, tokens = info["finish_reason"], info["output_token_logprobs"]
        token_ids = [int(token_id) for _, token_id, *_ in tokens]
        if finish["type"] == "abort":
            raise Unreachable(f"{self.url}/generate gave a request up: {finish.get('message')}")
        if any(log_prob is None for log_prob, *_ in tokens):
            raise WorkerError(f"{self.url}/generate: a log-probability that is no number")
        # A reply whose last permitted token ends it is one that a limit cut off, to SGLang.
        ended = token_ids[-1] in eos_ids
        matched = finish.get("matched")
        if finish["type"] == "stop" and not (ended or isinstance(matched, str)):
            raise RecipeError(
                f"rollout.server.urls: {self.url} ended a reply at the token {matched}, which ends "
                f"none in this run ({', '.join(map(str, eos_ids))} do): start it with the "
                "tokenizer and the generation_config.json of model.path"
            )
        if finish["type"] == "length" and not ended and len(token_ids) < limit:
            raise RecipeError(
                f"rollout.server.urls: {self.url} cut a reply off after {len(token_ids)} of "
                f"{limit} tokens: start it with a larger {self.length_option}, or more room for "
                f"its cache, or lower rollout.max_context_length ({self.max_length})"
            )
        log_probs = [float(log_prob) for log_prob, *_ in tokens]
        return Drawn(token_ids, log_probs, ended, not ended and isinstance(matched, str))

    def load(self) -> None:
        self.connect()  # it may be another one since
        label, path = f"rl-train-{uuid.uuid4().hex}", "/update_weights_from_disk"
        said = self.post(path, {"model_path": str(self.folder), "weight_version": label})
        if self.state() != label:
            raise RecipeError(
                f"{self.url}/get_model_info does not name the weight_version that {path} was given "
                f"({said['message']}), without which a restart of the server would go unnoticed; "
                "use SGLang 0.5 or newer"
            )
        self.loaded = label

    def state(self) -> str:
        """Return the label of the weights that the server computes with."""
        return str(self.get("/get_model_info").get("weight_version"))
