"""Models of SmolLM2's class and tokenizer in sizes of their own, with random weights: what a step
takes depends on no weight."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from rl_core.models.locate import locate
from rl_core.runtime.home import Home

MODEL = "embedded:smollm2-135m-instruct"
SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
)
SHAPES = {
    "tiny": (192, 512, 6, 3, 1),
    "360M": (960, 2560, 32, 15, 5),
    "1.1B": (2048, 8192, 16, 32, 8),
}
"""Their sizes; a head has 64 numbers. The largest is that of Llama 3.2, but for its vocabulary."""


@dataclass
class RandomModels:
    """Folders of models by name, made when first asked for; `135M` is SmolLM2 itself."""

    folder: Path
    base: str = field(default_factory=lambda: locate(MODEL, Home.default().models))

    def __getitem__(self, name: str) -> str:
        if name == "135M":
            return self.base
        made = self.folder / name
        if not made.is_dir():
            self._make(made, dict(zip(SIZES, SHAPES[name], strict=True)) | {"head_dim": 64})
        return str(made)

    def _make(self, folder: Path, shape: dict[str, int]) -> None:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

        torch.manual_seed(0)
        config = AutoConfig.from_pretrained(self.base, **shape)
        with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
            AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        AutoTokenizer.from_pretrained(self.base).save_pretrained(folder)
