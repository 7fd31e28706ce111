"""Methods for the workers of a vLLM server on CPUs, which needs one more step to load weights.

vllm serve MODEL --worker-extension-cls rl_core.rollout.vllm_process.worker_extension.CpuReload
"""

from __future__ import annotations

from typing import Any

from rl_core.rollout.vllm_process.server import pack_head


class CpuReload:
    """Extension of a worker, whose `model_runner` it uses."""

    model_runner: Any

    def reload_on_cpu(self, weights_path: str) -> None:
        """Load the weights of a checkpoint's folder; `rollout.server.reload` names this method."""
        self.model_runner.reload_weights(weights_path=weights_path)
        pack_head(self.model_runner.get_model())
