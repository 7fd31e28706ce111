"""The interface of vLLM for the engine: token ids in, token ids and their log-probabilities out,
replaceable weights.

It runs in the interpreter of an environment with vLLM
(`rl_core.rollout.vllm_process.isolated_main`). vLLM's own scheduler batches continuously, so all
requests of a call are submitted at once and a row that ends makes room for the next. The model is
in the same process, or on each of several devices in a process of its own, which vLLM starts.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypeAlias, get_args

from rl_core.errors import RecipeError
from rl_core.models.decoding.token_choice import StepSupport
from rl_core.rollout.vllm_process.kept_tokens import CHOICE, NUMBER, Key
from rl_core.rollout.vllm_process.picture_prompts import with_pictures
from rl_core.rollout.vllm_process.worker_extension import WorkerMethods
from schemas.sections.sampling import SamplingConfig

if TYPE_CHECKING:
    from PIL.Image import Image

    from rl_core.models.export.checksums import Checksum

CPU_BLOCK = 32
"""Size of a KV-cache block on a CPU in tokens, the unit of prefix sharing; vLLM's own 128 are
longer than many prompts."""

WEIGHTS = "model.safetensors"
"""File of weights in a checkpoint's folder."""
ADAPTERS = "adapter_model.safetensors"
"""File of a folder of adapters in peft's format."""
Names: TypeAlias = "tuple[str, ...]"
"""Names of tensors in a file that are one tensor of the trainer's, one after the other."""
PROCESSOR = "rl_core.rollout.vllm_process.logits_processor:KeptTokens"
"""The logits processor, by a name from which vLLM's processes load it."""

MOMENT_S = 0.05
"""Seconds that replies are waited for before further requests are asked for."""


@dataclass(frozen=True)
class ServerOptions:
    """Options of the vLLM model."""

    device: str
    """Device, `cpu` or `cuda`."""
    dtype: str
    """Data type of weights and computation, `bfloat16` or `float32`."""
    max_length: int
    """Longest prompt plus reply in tokens."""
    max_rows: int
    """Maximum number of rows decoded at once; others wait."""
    kv_cache_bytes: int | None
    """Size of the KV cache; None uses what `memory_share` of the device leaves."""
    memory_share: float
    sleeps: bool
    """True if `sleep` may be called."""
    tensor_parallel_size: int = 1
    """Devices that share each weight matrix."""
    pipeline_parallel_size: int = 1
    """Groups of devices that hold a part of the layers each."""
    lora_rank: int | None = None
    """Rank of the adapters that are loaded beside the weights; None for none."""
    timeout_s: float = 600.0
    """Longest time without an answer of a device's process."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of vLLM's engine."""


@dataclass(frozen=True)
class Prompt:
    """A context to continue `num_replies` times, with one prefill."""

    token_ids: list[int]
    num_replies: int
    max_new_tokens: int
    seed: int
    stop: tuple[str, ...] = ()
    """Strings that end a reply."""
    pictures: tuple[Image, ...] = ()
    """Pictures in the context, in their order."""


@dataclass(frozen=True)
class Drawn:
    """One reply."""

    token_ids: list[int]
    """Token ids of the reply, including an end-of-sequence token."""
    log_probs: list[float]
    ended: bool
    """True if the model ended the reply, not a limit."""
    stopped: bool = False
    """True if a stop string did."""
    support: list[StepSupport] | None = None
    """Tokens that could be drawn at each position, if some were left out as improbable."""


class VllmServer:
    """A model in vLLM.

    Args: folder: the checkpoint: weights in one file, which may change between `reload`s,
    `config.json`, and the tokenizer, by which stop strings are found, or the processor with it.
    adapters: folder of adapters in peft's format, which may change in the same way; with it, the
    weights are their base, and stay. The caller sets the variables of the process.
    """

    def __init__(
        self,
        folder: str,
        options: ServerOptions,
        adapters: str | None = None,
    ) -> None:
        from vllm import LLM  # pyright: ignore[reportMissingImports]

        self.folder, self.options, self.adapters = folder, options, adapters
        self._adapter: Any = None
        """vLLM's name of the adapters that were loaded last."""
        self._asleep = False
        self._seeds: dict[int, int] = {}
        """Seeds of the replies that were put and have not ended, by their numbers."""
        on_cpu = options.device == "cpu"
        num_devices = options.tensor_parallel_size * options.pipeline_parallel_size
        check_arguments(options.arguments)
        self.llm = LLM(
            model=folder,
            # Compiling takes a CPU longer than it ever saves here.
            **{"enforce_eager": on_cpu, **options.arguments},
            dtype=options.dtype,
            # Token ids go in and out, and the caller says what ends a reply.
            generation_config="vllm",
            logits_processors=[PROCESSOR],
            worker_extension_cls=f"{WorkerMethods.__module__}.{WorkerMethods.__qualname__}",
            tensor_parallel_size=options.tensor_parallel_size,
            pipeline_parallel_size=options.pipeline_parallel_size,
            # Among Ray's actors vLLM would ask Ray for devices, which this server has.
            distributed_executor_backend="mp" if num_devices > 1 else "uni",
            **adapter_arguments(options.lora_rank),
            # Those of the distribution that was sampled: after the temperature.
            logprobs_mode="processed_logprobs",
            max_model_len=options.max_length,
            max_num_seqs=options.max_rows,
            enable_prefix_caching=True,
            block_size=CPU_BLOCK if on_cpu else None,
            kv_cache_memory_bytes=options.kv_cache_bytes,
            gpu_memory_utilization=options.memory_share,
            enable_sleep_mode=options.sleeps,
            disable_log_stats=False,
            use_tqdm_on_load=False,
        )

    def begin(self) -> None:
        """Prepare for the calls of a rollout: wake up, and drop the cache of earlier rollouts, so
        that a repeat is equal."""
        if self._asleep:
            self._wake()
        self._abort(list(self._seeds))
        self._forget()

    def generate(
        self,
        prompts: Sequence[Prompt],
        temperature: float,
        eos_ids: Sequence[int],
        choice: SamplingConfig,
    ) -> list[Drawn]:
        """Return replies to every prompt in order, group by group.

        Args: temperature: 0 is greedy, with the log-probabilities of temperature 1. eos_ids: tokens
        that end a reply. choice: which tokens may be drawn.
        """
        self._take_support(None)
        for number, prompt in enumerate(prompts):
            self._ask(number, prompt, _parameters(number, prompt, temperature, eos_ids, choice))
        drawn = []
        outputs = self.llm.wait_for_completion(use_tqdm=False)
        support = self._take_support(None)
        for number, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
            replies = [
                # Siblings are told apart by their seeds, which vLLM counts up.
                _drawn(one, support.get((number, prompt.seed + one.index)))
                for one in sorted(output.outputs, key=lambda one: one.index)
            ]
            drawn += replies if temperature else replies * prompt.num_replies
        return drawn

    def put(
        self,
        prompts: Mapping[int, Prompt],
        temperature: float,
        eos_ids: Sequence[int],
        choice: SamplingConfig,
    ) -> None:
        """Begin with single replies to some prompts, by their numbers, besides those under way.
        Args: as of `generate`."""
        for number, prompt in prompts.items():
            self._seeds[number] = prompt.seed
            self._ask(number, prompt, _parameters(number, prompt, temperature, eos_ids, choice))

    def advance(self, given_up: Sequence[int]) -> dict[int, Drawn]:
        """Give up some of what was put, and sample the rest for `MOMENT_S`, or until a reply has
        ended. Returns: the replies that have, by their numbers."""
        self._abort(given_up)
        ended: dict[Key, Any] = {}
        end = time.monotonic() + MOMENT_S
        while self._seeds and not ended and time.monotonic() < end:
            for output in self.llm.llm_engine.step():
                if output.finished:
                    number = int(output.request_id)
                    ended[number, self._seeds.pop(number)] = output.outputs[0]
        support = self._take_support(list(ended))
        return {key[0]: _drawn(output, support.get(key)) for key, output in ended.items()}

    def _ask(self, number: int, prompt: Prompt, parameters: Any) -> None:
        given: Any = {"prompt_token_ids": prompt.token_ids}
        if prompt.pictures:
            given = with_pictures(self.llm, prompt.token_ids, prompt.pictures)
        self.llm.llm_engine.add_request(str(number), given, parameters, lora_request=self._adapter)

    def _abort(self, numbers: Sequence[int]) -> None:
        self.llm.llm_engine.abort_request([str(number) for number in numbers])
        self._take_support([(number, self._seeds.pop(number)) for number in numbers])

    def _take_support(self, keys: list[Key] | None) -> dict[Key, dict[int, StepSupport]]:
        """Return the tokens that could be drawn for some replies, or for all, and forget them."""
        support: dict[Key, dict[int, StepSupport]] = {}
        if keys or keys is None:
            # The devices that share a reply's tokens have equal records, others have none.
            for found in self._on_devices("take_support", keys):
                support |= found
        return support

    def reload(self, expected: Mapping[Names, Checksum], dtype: str, where: str) -> None:
        """Load the weights that the file now holds, or the adapters; a server that sleeps loads
        them when it wakes.

        Args: expected: the checksums of what the trainer sent, by the names of its pieces in the
        file, computed in format `dtype`.
        Raises: WeightMismatch, naming `where`, before anything is loaded; RecipeError when vLLM
        cannot load the adapters.
        """
        files = [f"{self.folder}/{WEIGHTS}"]
        if self.adapters is not None:
            files.append(f"{self.adapters}/{ADAPTERS}")
        check_files(files, expected, dtype, where)
        # A server that sleeps wakes at its next `begin`, when the trainer may have made room.
        if not self._asleep:
            if self.adapters is None:
                self._load()
            else:
                self._load_adapters(self.adapters)
            self._forget()

    def sleep(self) -> None:
        """Release the device's memory; the next use of the model wakes it, from the file.

        Raises: RecipeError when the server was not started for it.
        """
        if not self.options.sleeps:
            raise RecipeError(
                "the vLLM server cannot sleep; set rollout.vllm.sleep: true, on a GPU"
            )
        if not self._asleep:
            self.llm.sleep(level=2)
            self._asleep = True

    def device_pids(self) -> list[int]:
        """Return the process that computes on each device; this one, if it is a single device."""
        return self._on_devices("pid")

    def shared_prefill(self) -> tuple[int, int]:
        """Return the prompt tokens so far, and how many of them were shared with another row."""
        values = {}
        for metric in self.llm.get_metrics():
            values[metric.name] = getattr(metric, "value", 0)
        return values["vllm:prefix_cache_queries"], values["vllm:prefix_cache_hits"]

    def _forget(self) -> None:
        """Drop what was computed of contexts, and of their pictures."""
        self.llm.reset_prefix_cache()
        self.llm.llm_engine.reset_encoder_cache()

    def _wake(self) -> None:
        # The weights first: keys and values take what room they leave.
        self.llm.wake_up(tags=["weights"])
        self._load()
        if self.adapters is not None:
            self._load_adapters(self.adapters)
        self.llm.wake_up(tags=["kv_cache"])
        self._asleep = False

    def _load(self) -> None:
        # Assigning to the loaded parameters would miss what vLLM made of them (fused, and packed
        # for the device).
        method = "reload_on_cpu" if self.options.device == "cpu" else "reload_weights"
        self._on_devices(method, self.folder)

    def _load_adapters(self, folder: str) -> None:
        from vllm.lora.request import LoRARequest  # pyright: ignore[reportMissingImports]

        # Under another name each time, since vLLM keeps what it knows.
        number = 1 + (self._adapter.lora_int_id if self._adapter is not None else 0)
        adapter = LoRARequest(f"update-{number}", number, folder)
        try:
            self.llm.llm_engine.add_lora(adapter)
        except ValueError as error:
            raise RecipeError(
                f"rollout.sync.mode: adapter: vLLM cannot load the adapters ({error}); use mode: "
                "full"
            ) from error
        # What has a place on no device is left out by vLLM without a word.
        lost = set.intersection(*map(set, self._on_devices("unplaced_adapters", number)))
        if lost:
            raise RecipeError(
                f"rollout.sync.mode: adapter: vLLM has no place for the adapters of {len(lost)} "
                f"layers, {min(lost)} among them; use mode: full"
            )
        self._adapter = adapter

    def _on_devices(self, method: str, *args: object) -> list[Any]:
        """Call a method of the process of each device."""
        return self.llm.collective_rpc(method, timeout=self.options.timeout_s, args=args)


def check_files(
    files: Sequence[str], expected: Mapping[Names, Checksum], dtype: str, where: str
) -> None:
    """Compare files of weights with the checksums of what the trainer sent. Args: as of
    `VllmServer.reload`. Raises: WeightMismatch naming `where`."""
    import torch
    from safetensors import safe_open

    from rl_core.models.export.checksums import check_same, checksum

    wanted = {_shown(names): one for names, one in expected.items()}
    found = {}
    for path in files:
        with safe_open(path, framework="pt") as file:
            held = set(file.keys())
            for names, one in expected.items():
                if held.issuperset(names):
                    pieces = [file.get_tensor(name) for name in names]
                    whole = pieces[0]
                    if len(pieces) > 1:
                        whole = torch.cat([piece.reshape(-1) for piece in pieces]).view(one.shape)
                    found[_shown(names)] = checksum(whole.to(getattr(torch, dtype)))
    check_same(wanted, found, where)


def _shown(names: Names) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


def adapter_arguments(rank: int | None) -> dict[str, Any]:
    """Return the arguments of vLLM's engine for adapters of a rank. Raises: RecipeError when it is
    larger than vLLM's kernels know."""
    if rank is None:
        return {}
    from vllm.config.lora import MaxLoRARanks  # pyright: ignore[reportMissingImports]

    sizes = get_args(MaxLoRARanks)
    fitting = [size for size in sizes if size >= rank]
    if not fitting:
        raise RecipeError(
            f"lora.rank: {rank}: the vLLM that is installed loads adapters of ranks up to "
            f"{max(sizes)}; lower it, or use rollout.sync.mode: full"
        )
    return {
        "enable_lora": True,
        "max_lora_rank": min(fitting),
        "max_loras": 1,
        "max_cpu_loras": 1,
    }


def check_arguments(arguments: Mapping[str, object]) -> None:
    """Compare the recipe's arguments with those of the vLLM that is installed here.

    Raises: RecipeError naming one that it does not have.
    """
    from vllm import EngineArgs  # pyright: ignore[reportMissingImports]

    known = {one.name for one in fields(EngineArgs)}
    for name in arguments:
        if name not in known:
            near = get_close_matches(name, sorted(known), 1)
            meant = f"; did you mean {near[0]}?" if near else ""
            raise RecipeError(
                f"rollout.vllm.arguments: the vLLM that is installed has no {name}{meant}"
            )


def _parameters(
    number: int,
    prompt: Prompt,
    temperature: float,
    eos_ids: Sequence[int],
    choice: SamplingConfig,
) -> Any:
    """Return vLLM's parameters of a request, which is answered when all its replies have ended.
    Args: number: under which its tokens are recorded."""
    from vllm import SamplingParams  # pyright: ignore[reportMissingImports]
    from vllm.sampling_params import RequestOutputKind  # pyright: ignore[reportMissingImports]

    cuts = bool(temperature) and not choice.cuts_nothing
    return SamplingParams(
        # Greedy siblings are equal, and vLLM draws them once.
        n=prompt.num_replies if temperature else 1,
        temperature=temperature,
        max_tokens=prompt.max_new_tokens,
        seed=prompt.seed if temperature else None,
        stop_token_ids=list(eos_ids),
        ignore_eos=True,
        logprobs=0,
        repetition_penalty=choice.repetition_penalty,
        min_tokens=min(choice.min_new_tokens, prompt.max_new_tokens),
        stop=list(prompt.stop) or None,
        include_stop_str_in_output=True,
        detokenize=bool(prompt.stop),
        skip_special_tokens=False,
        spaces_between_special_tokens=False,
        extra_args={CHOICE: choice, NUMBER: number} if cuts else None,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def _drawn(output: Any, steps: Mapping[int, StepSupport] | None) -> Drawn:
    token_ids = list(output.token_ids)
    log_probs = []
    for at, token in zip(output.logprobs, token_ids, strict=True):
        log_probs.append(at[token].logprob)
    ended, by_string = output.finish_reason == "stop", isinstance(output.stop_reason, str)
    support = None if steps is None else [steps[place] for place in range(len(token_ids))]
    return Drawn(token_ids, log_probs, ended and not by_string, ended and by_string, support)
