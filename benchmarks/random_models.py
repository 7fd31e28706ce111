"""Models of SmolLM2's class and tokenizer in sizes of their own, with random weights: what a step takes depends on no
weight."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from rl_core.home import Home
from rl_core.models.locate import locate

MODEL = "embedded:smollm2-135m-instruct"
SHAPES = {
    "tiny": {"hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 6, "num_attention_heads": 3},
    "360M": {"hidden_size": 960, "intermediate_size": 2560, "num_hidden_layers": 32, "num_attention_heads": 15},
    "1.1B": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32},
}
"""A head has 64 numbers; a third of the heads (of the largest a quarter, as in Llama 3.2) hold keys and values."""
KEY_HEADS = {"tiny": 1, "360M": 5, "1.1B": 8}


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
            self._make(made, SHAPES[name] | {"num_key_value_heads": KEY_HEADS[name], "head_dim": 64})
        return str(made)

    def _make(self, folder: Path, shape: dict[str, int]) -> None:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

        torch.manual_seed(0)
        config = AutoConfig.from_pretrained(self.base, **shape)
        with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
            AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        AutoTokenizer.from_pretrained(self.base).save_pretrained(folder)
