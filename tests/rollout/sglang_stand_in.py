"""A server that answers as SGLang's does, with a real model of transformers: SGLang itself needs a
GPU.

What it copies is said in SGLang 0.5's `http_server.py` and `schedule_batch.py`: the limit on tokens
is checked before the end of a reply, the tokens of the tokenizer end a reply besides those of the
request, a cache is not flushed while a request runs, and a label of the weights is lost with the
process.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.rollout.server_parts import SPARE


class SglangStandIn:
    """A server of one model. Args: length: longest prompt plus reply. `is_old` keeps no label,
    `gives_up` aborts every request."""

    def __init__(self, model_dir: Path, length: int) -> None:
        self.model_dir, self.length = model_dir, length
        self.tokenizer = AutoTokenizer.from_pretrained(model_dir)
        self.ends = {self.tokenizer.eos_token_id}
        self.asked: list[dict[str, Any]] = []
        self.num_loads = self.num_flushes = self.num_running = 0
        self.gives_up = self.is_old = False
        self.heeds_seeds = True
        self.may_answer = threading.Event()
        self.may_answer.set()
        self._computing = threading.Lock()
        self.start_again()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                answers: dict[str, Any] = {
                    "/v1/models": {"data": [{"id": "model", "max_model_len": outer.length}]},
                    "/get_model_info": {"weight_version": outer.label},
                    "/get_server_info": {"enable_deterministic_inference": outer.heeds_seeds},
                }
                self._say(200 if self.path in answers else 404, answers.get(self.path))

            def do_POST(self) -> None:
                text = self.rfile.read(int(self.headers["Content-Length"] or 0))
                body = json.loads(text) if text else {}
                match self.path:
                    case "/generate":
                        self._say(200, outer.generate(body))
                    case "/update_weights_from_disk":
                        self._say(*outer.load(body))
                    case "/flush_cache":
                        outer.num_flushes += not outer.num_running
                        self._say(400 if outer.num_running else 200, None)
                    case "/abort_request":
                        self._say(200, None)
                    case _:
                        self._say(404, None)

            def _say(self, status: int, said: object) -> None:
                text = b"" if said is None else json.dumps(said).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            request_queue_size = 128  # all rows of a rollout ask at once

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def start_again(self) -> None:
        """Have the first weights, as a new process."""
        self.model = AutoModelForCausalLM.from_pretrained(self.model_dir, dtype=torch.float32)
        self.label = "default"

    def close(self) -> None:
        self.may_answer.set()
        self._server.shutdown()
        self._server.server_close()

    def load(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        tensors = load_file(Path(body["model_path"]) / "model.safetensors")
        found = self.model.load_state_dict(tensors, strict=False)
        if found.unexpected_keys or set(found.missing_keys) - {"lm_head.weight"}:
            return 400, {"success": False, "message": str(found)}
        self.model.tie_weights()
        self.num_loads += 1
        if not self.is_old:
            self.label = body["weight_version"]
        return 200, {"success": True, "message": "Succeeded to update model weights."}

    def generate(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        self.asked.append(body)
        self.num_running += 1
        self.may_answer.wait(30)
        try:
            given = zip(body["input_ids"], body["sampling_params"], strict=True)
            with self._computing, torch.no_grad():
                return [self._reply(ids, settings) for ids, settings in given]
        finally:
            self.num_running -= 1

    def _reply(self, prompt: list[int], settings: dict[str, Any]) -> dict[str, Any]:
        # As the scheduler does.
        limit = min(settings["max_new_tokens"], self.length - len(prompt) - SPARE)
        drawer = torch.Generator().manual_seed(settings["sampling_seed"])
        is_greedy, tokens = settings["temperature"] == 0, list[tuple[float, int, None]]()
        finish: dict[str, Any] = {"type": "length", "length": limit}
        while True:
            drawn = [token for _, token, _ in tokens]
            logits = self.model(torch.tensor([prompt + drawn])).logits[0, -1].float()
            ends = {*settings["stop_token_ids"], *self.ends}
            ends = set() if settings.get("ignore_eos") else ends
            if len(tokens) < settings["min_new_tokens"]:
                logits[list(ends)] = -torch.inf
            scores = (logits if is_greedy else logits / settings["temperature"]).log_softmax(-1)
            if is_greedy:
                token = int(scores.argmax())
            else:
                token = int(torch.multinomial(scores.exp(), 1, generator=drawer))
            tokens.append((float(scores[token]), token, None))
            if len(tokens) >= limit:
                break
            if token in ends:
                finish = {"type": "stop", "matched": token}
                break
            text = self.tokenizer.decode([*drawn, token])
            if said := [one for one in settings["stop"] if one in text]:
                finish = {"type": "stop", "matched": said[0]}
                break
        if self.gives_up:
            finish = {"type": "abort", "message": "Abort in waiting queue"}
        return {"text": "", "meta_info": {"finish_reason": finish, "output_token_logprobs": tokens}}


@contextmanager
def sglang_stand_in(model_dir: Path, length: int) -> Iterator[SglangStandIn]:
    """Run one during the block."""
    server = SglangStandIn(model_dir, length)
    try:
        yield server
    finally:
        server.close()
