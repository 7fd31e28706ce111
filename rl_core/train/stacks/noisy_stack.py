"""NoisyStack: a TrainStack with uniform noise on the embeddings in training passes (NEFTune)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Unpack

import torch
from torch import Tensor

from rl_core.algorithms.base import StageAlgorithm
from rl_core.algorithms.metrics import Metric
from rl_core.algorithms.terms import Denominators
from rl_core.data_proto import DataProto
from rl_core.train.fsdp import FSDPBackend
from rl_core.train.stacks.segments import UpdateOptions
from rl_core.train.stacks.token_stack import TrainStack
from schemas.sections.sampling import SamplingConfig


class NoisyStack(TrainStack):
    """A TrainStack whose training passes add noise to the embeddings (NEFTune, arXiv 2310.05914).

    The noise of a row is drawn from the seed, the number of optimizer steps and the row's `uid`, so
    that neither micro-batches nor ranks nor a resumed run change it. Prompts are not shared, since
    each row has noise of its own.

    Args: neftune_alpha: scale; each value is in +-alpha / sqrt(tokens of the row x hidden size).
    """

    def __init__(
        self,
        fsdp_backend: FSDPBackend,
        algorithm: StageAlgorithm,
        *,
        neftune_alpha: float,
        seed: int,
        micro_batch_size: int | None = None,
        max_tokens_per_micro_batch: int | None = None,
        share_prompts: bool = False,
        temperature: float = 1.0,
        sampling: SamplingConfig | None = None,
        **options: Unpack[UpdateOptions],
    ) -> None:
        super().__init__(
            fsdp_backend,
            algorithm,
            micro_batch_size=micro_batch_size,
            max_tokens_per_micro_batch=max_tokens_per_micro_batch,
            temperature=temperature,
            sampling=sampling,
            **options,
        )
        self.alpha, self.seed = neftune_alpha, seed

    def _loss(
        self, micro: DataProto, denominators: Denominators
    ) -> tuple[Tensor, dict[str, Metric]]:
        with self._noise_on(micro):
            return super()._loss(micro, denominators)

    @contextmanager
    def _noise_on(self, micro: DataProto) -> Iterator[None]:
        """Add the noise of a micro-batch's rows to the embeddings during the block."""
        used_BL = micro.tensor("attention_mask").bool()
        uids, step = list(micro.non_tensor_batch["uid"]), self.backend.scheduler.last_epoch

        def add(_module: object, _inputs: object, embedded: Tensor) -> Tensor:
            noise_BLH = torch.zeros(*used_BL.shape, embedded.shape[-1], device=embedded.device)
            for row, (uid, used_L) in enumerate(zip(uids, used_BL, strict=True)):
                noise_BLH[row, used_L] = self._noise(
                    f"{self.seed}:{step}:{uid}", int(used_L.sum()), embedded.shape[-1]
                ).to(embedded.device)
            # Packed rows lie end to end, without padding.
            noise = noise_BLH[used_BL][None] if self.packs else noise_BLH
            return embedded + noise.to(embedded.dtype)

        module = self.backend.policy.language_model.get_input_embeddings()
        handle = module.register_forward_hook(add)
        try:
            yield
        finally:
            handle.remove()

    def _noise(self, name: str, num_tokens: int, size: int) -> Tensor:
        """Return the noise of a row, [tokens, hidden]."""
        digest = hashlib.sha256(name.encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
        scale = self.alpha / math.sqrt(max(1, num_tokens) * size)
        return (torch.rand(num_tokens, size, generator=generator) * 2 - 1) * scale
