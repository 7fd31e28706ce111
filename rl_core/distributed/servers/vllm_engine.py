"""Rollout engine of language models that samples with vLLM, which runs in its own Python
environment.

Each rank of the engine keeps the received weights in shared memory and has its own vLLM server on
the same device, or the same devices; the ranks behind one handle are the replicas, and the rows of
a rollout are distributed over them.

    trainer ── buckets ──> rank: shared memory ──> server: checksums, reload_weights
                           rank: episodes ── requests, seeds ──> server: tokens, log-probabilities
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rl_core.distributed.isolated_actor import PROJECT, Outside
from rl_core.distributed.servers.server_sampler import ServerSampler
from rl_core.errors import RecipeError
from rl_core.models.adapters.lora import TRAINED, base_name, is_adapter
from rl_core.models.bundle import ModelBundle, TextBundle
from rl_core.models.decoding.request import Sampling
from rl_core.models.export.checksums import Checksum
from rl_core.models.export.stored_forms import Form, Piece, stored_forms
from rl_core.ranks.meeting_store import INTERFACE_VARIABLES
from rl_core.ranks.rank_info import RankInfo
from rl_core.rollout.dedicated import Receiver, Replica
from rl_core.rollout.engine import RolloutEngine
from rl_core.rollout.sampler import Sampler
from rl_core.rollout.servers.balancer import BalancedServers
from rl_core.rollout.vllm_process.server import (
    ADAPTERS,
    WEIGHTS,
    Names,
    ServerOptions,
    VllmServer,
)
from rl_core.rollout.vllm_process.shared_weights import SharedWeights
from rl_core.train.weights.buckets import WeightVersion
from schemas.recipe import DType, LoraConfig
from schemas.sections.rollout import RolloutConfig, SyncMode, VllmConfig

POLICY = "model."
"""Prefix of a policy's parameter names that a checkpoint does not have."""
CPU_KV_CACHE_GIB = 4.0


class SharedReplica(Replica):
    """Received weights, in shared memory under the names of a checkpoint, adapters apart from their
    base; nothing is computed with them here."""

    def __init__(
        self,
        bundle: Any,
        lora: LoraConfig | None,
        mode: SyncMode,
        dtype: DType,
        rank_info: RankInfo,
    ) -> None:
        # Before adapters have changed the names of what they adapt.
        self._forms = stored_forms(bundle.policy.language_model)
        super().__init__(bundle, lora, mode, dtype, rank_info)
        kept = self.policy.state_dict()
        held = self.parameters | {
            name: one for name, one in self.policy.named_buffers() if name in kept
        }
        base, adapters = dict[str, Tensor](), dict[str, Tensor]()
        for name, one in held.items():
            (adapters if is_adapter(name) else base)[name] = one
        self.shared = self._moved(base)
        self.adapters = self._moved(adapters) if adapters else None

    @property
    def home(self) -> torch.device:
        """Host memory, whatever device the server computes on."""
        return torch.device("cpu")

    def form_of(self, parameter: str, shape: Sequence[int]) -> Form:
        """Return how the checkpoint of the model has a policy's parameter, or peft's file an
        adapter.

        Raises: RecipeError when a checkpoint has its numbers in another order.
        """
        if is_adapter(parameter):
            name = parameter.removeprefix(POLICY).replace(f".{TRAINED}.", ".")
            return (Piece(name, tuple(shape)),)
        name = base_name(parameter).removeprefix(POLICY)
        if name not in self._forms:
            raise RecipeError(
                "rollout.engine: vllm reads weights as a checkpoint has them, and the numbers of "
                f"{name} are in another order there; use dedicated"
            )
        return self._forms[name]

    def _moved(self, parameters: Mapping[str, Tensor]) -> SharedWeights:
        """Move parameters to shared memory, in place."""
        forms = {name: self.form_of(name, one.shape) for name, one in parameters.items()}
        shared = SharedWeights({name: one.data for name, one in parameters.items()}, forms)
        for name, one in parameters.items():
            one.data = shared.tensors[name]
        return shared


class VllmEngine(Receiver, RolloutEngine):
    """Rollout engine whose replies come from vLLM. Raises: RecipeError when it cannot be started as
    requested."""

    bundle_class = TextBundle
    replica_class = SharedReplica
    replica: SharedReplica

    def __init__(self, *options: Any, rank_info: RankInfo) -> None:
        super().__init__(*options, rank_info=rank_info)
        model = self.replica.policy.language_model
        bundle = self.replica.bundle
        check_model(model, bundle.source, self.config.vllm.tensor_parallel_size)
        self.where = f"rollout engine rank {rank_info.rank}"
        described = model.config.to_dict() | {"architectures": [type(model).__name__]}
        # Kept as long as the engine: the server may be started again.
        self._folder = tempfile.TemporaryDirectory(prefix="rl-train-vllm-")
        folder = Path(self._folder.name)
        (bundle.processor or self.tokenizer).save_pretrained(folder)
        (folder / "config.json").write_text(json.dumps(described), encoding="utf-8")
        (folder / WEIGHTS).symlink_to(self.replica.shared.path)
        self._adapter_folder = self._described_adapters()
        self.server = self.start_server(described, rank_info)
        if self.config.vllm.sleep:
            # The trainer is built next, perhaps on the same device; the first weights wake the
            # server.
            self.sleep()

    def _described_adapters(self) -> tempfile.TemporaryDirectory[str] | None:
        """Return a folder of the adapters in peft's format, as far as they are sent apart."""
        if self.replica.adapters is None:
            return None
        folder = tempfile.TemporaryDirectory(prefix="rl-train-adapters-")
        self.replica.policy.model.peft_config[TRAINED].save_pretrained(folder.name)
        Path(folder.name, ADAPTERS).symlink_to(self.replica.adapters.path)
        return folder

    def start_server(
        self, config: dict[str, Any], rank_info: RankInfo
    ) -> Outside | BalancedServers:
        """Start the server of this rank. Args: config: content of the model's `config.json`."""
        number_format = next(self.replica.policy.language_model.parameters()).dtype
        timeout_s = dist.distributed_c10d.default_pg_timeout.total_seconds()
        options = server_options(self.config, self.max_context_length, rank_info, number_format)
        folder = self._adapter_folder
        rank = None
        if folder is not None:
            rank = self.replica.policy.model.peft_config[TRAINED].r
        server = Outside(
            interpreter(self.config.vllm),
            VllmServer,
            self._folder.name,
            replace(options, timeout_s=timeout_s, lora_rank=rank),
            None if folder is None else folder.name,
            label=self.where,
            environment=environment(rank_info, self.config.vllm.devices_per_server, timeout_s),
            timeout_s=timeout_s,
        )
        server.rely_on(server.call("device_pids"))
        return server

    @property
    def rows_at_once(self) -> int:
        """Number of ready rows: the server queues those beyond `max_batch_size`, and replaces each
        row that ends."""
        return sys.maxsize

    @contextmanager
    def decoding(
        self, sampling: Sampling, generator: torch.Generator, *, evaluation: bool = False
    ) -> Iterator[Sampler]:
        """Yield what answers requests by the server, which has one set of weights at a time. Each
        request gets a seed, so a repeat gives the same replies."""
        self.server.call("begin")
        renewal = None if evaluation or not sampling.temperature else self.in_flight
        given = self.server, sampling, generator, self.chat.decode
        yield ServerSampler(*given, self.config.tokens_per_request, renewal)

    def finish_sync(
        self, version: WeightVersion, expected: dict[str, Checksum], dtype: torch.dtype
    ) -> None:
        """End an update: the server checks the received weights, in the memory that it reads, and
        loads them.

        Raises: WeightMismatch when a tensor is not what was sent; the engine then stays unusable.
        """
        self.replica.version = None
        named: dict[Names, Checksum] = {}
        for name, one in expected.items():
            names = tuple(piece.name for piece in self.replica.form_of(name, one.shape))
            named[names] = one
        where = f"{self.where}, weights {version}"
        self.server.call("reload", named, str(dtype).removeprefix("torch."), where)
        self.replica.check_known(expected)
        self.replica.version = version

    def probe(self) -> None:
        """Return None: the server samples, and every rollout compares its log-probabilities."""
        return None

    def sleep(self) -> None:
        """Release the device's memory until the next weights or the next rollout. Raises:
        RecipeError on a CPU."""
        self.server.call("sleep")


class SeeingVllmEngine(VllmEngine):
    """A `VllmEngine` of a vision-language model, whose pictures vLLM's own processor reads."""

    bundle_class = ModelBundle
    keeps_pictures = True


def check_model(model: Any, source: str, tensor_parallel_size: int) -> None:
    """Refuse a model that vLLM cannot divide, with a clearer message. Raises: RecipeError."""
    heads = getattr(model.config.get_text_config(), "num_attention_heads", None)
    if heads and heads % tensor_parallel_size:
        fitting = ", ".join(str(size) for size in range(1, heads + 1) if heads % size == 0)
        raise RecipeError(
            f"rollout.vllm.tensor_parallel_size: {tensor_parallel_size} does not divide the "
            f"{heads} attention heads of {source}; sizes that fit: {fitting}"
        )


def interpreter(config: VllmConfig) -> str:
    """Return the path of the interpreter with vLLM. Raises: RecipeError when there is none."""
    path = PROJECT / Path(config.python).expanduser()
    if not path.is_file():
        raise RecipeError(
            f"rollout.vllm.python: there is no {path}; `make .venv-vllm/.installed` builds the "
            "environment for CPUs, and docs/running.md says how to make one for GPUs"
        )
    return str(path)


def server_options(
    config: RolloutConfig, max_context_length: int, rank_info: RankInfo, dtype: torch.dtype
) -> ServerOptions:
    """Return the options of this rank's server."""
    on_cpu, vllm = rank_info.device_kind == "cpu", config.vllm
    gib = vllm.kv_cache_gib or (CPU_KV_CACHE_GIB if on_cpu else None)
    return ServerOptions(
        device=rank_info.device_kind,
        dtype=str(dtype).removeprefix("torch."),
        max_length=max_context_length,
        max_rows=config.max_batch_size,
        kv_cache_bytes=int(gib * 2**30) if gib else None,
        memory_share=vllm.memory_share,
        sleeps=vllm.sleep,
        tensor_parallel_size=vllm.tensor_parallel_size,
        pipeline_parallel_size=vllm.pipeline_parallel_size,
        arguments=vllm.arguments,
    )


def environment(rank_info: RankInfo, num_devices: int, timeout_s: float) -> dict[str, str]:
    """Return the environment of the server's process: this rank's devices and threads, and no
    network access. Args: num_devices: processes that compute, which share the threads. timeout_s:
    longest time that one of them may take for a step."""
    variables = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": str(max(1, int(timeout_s))),
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(max(1, rank_info.num_threads // num_devices)),
        # Its own binding would put every server of this machine on the same cores.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    variables |= {name: os.environ[name] for name in INTERFACE_VARIABLES if name in os.environ}
    if rank_info.device_kind == "cuda":
        # The server asks Ray for no GPU: it uses that of its rank.
        return variables | {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0")}
    return variables
