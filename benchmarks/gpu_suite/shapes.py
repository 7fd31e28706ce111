"""Language models by their sizes alone, with random weights and one token for each word."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import LlamaConfig

SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
)
SHAPES = {
    "0.6B": (1024, 3072, 28, 16, 8, 128, 151936),
    "1.1B": (2048, 8192, 16, 32, 8, 64, 49152),
    "4B": (2560, 9728, 36, 32, 8, 128, 151936),
    "dry": (64, 128, 2, 2, 1, 32, 512),
}
"""Sizes of Qwen3 0.6B, Llama 3.2 1B with a smaller vocabulary, Qwen3 4B, and of a dry run. All are
built as Llama is."""
TEMPLATE = (
    "{% for message in messages %}w1 {{ message['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}w2{% endif %}"
)
IN_TEMPLATE = 2
"""Tokens of a prompt that the template adds to those of one message."""


@dataclass(frozen=True)
class Case:
    """The sizes of one step."""

    shape: str
    prompt: int
    """Tokens of a prompt."""
    reply: int
    """Tokens of a reply."""
    num_prompts: int = 16
    samples: int = 8
    lora: bool = False

    @property
    def num_rows(self) -> int:
        return self.num_prompts * self.samples


def config_of(shape: str) -> LlamaConfig:
    """Return the transformers config of a shape."""
    from transformers import LlamaConfig

    sizes: dict[str, Any] = dict(zip(SIZES, SHAPES[shape], strict=True))
    return LlamaConfig(
        **sizes,
        tie_word_embeddings=True,
        max_position_embeddings=8192,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=3,
    )


def model_folder(shape: str, scratch: Path, device: str) -> str:
    """Return the folder of a shape's model in bfloat16, made on first use."""
    import torch
    from transformers import LlamaForCausalLM

    folder = scratch / shape
    if not folder.is_dir():
        torch.manual_seed(0)
        torch.set_default_dtype(torch.bfloat16)
        try:
            with torch.device(device):
                model = LlamaForCausalLM(config_of(shape))
        finally:
            torch.set_default_dtype(torch.float32)
        model.save_pretrained(folder)
        tokenizer_of(SHAPES[shape][-1]).save_pretrained(folder)
    return str(folder)


def tokenizer_of(num_words: int) -> Any:
    """Return a tokenizer whose tokens are the words `w0`, `w1` and so on."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(
        models.WordLevel({f"w{number}": number for number in range(num_words)}, unk_token="w4")
    )
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="w0", pad_token="w3", padding_side="left"
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def prompts_file(case: Case, num_steps: int, scratch: Path) -> str:
    """Write the prompts of some steps as `benchmarks.trl` does, each of `case.prompt` tokens.
    Returns: the file's path."""
    path = scratch / f"prompts-{case.prompt}.jsonl"
    first, last = 5, SHAPES[case.shape][-1]
    with path.open("w", encoding="utf-8") as file:
        for number in range(num_steps * case.num_prompts):
            words = []
            for place in range(case.prompt - IN_TEMPLATE):
                words.append(f"w{first + (7919 * number + 31 * place) % (last - first)}")
            row = {
                "prompt": [{"role": "user", "content": " ".join(words)}],
                "env_class": "gsm8k",
                "reward_spec": {"method": "rule", "ground_truth": "1"},
            }
            line = {"prompt": row["prompt"], "answer": "1", "row": row}
            file.write(json.dumps(line) + "\n")
    return str(path)


def settings_of(case: Case, num_steps: int, scratch: Path, device: str) -> dict[str, Any]:
    """Return the settings that both sides of `benchmarks.trl` get for a case."""
    return {
        "weights": "float32",
        "autocast": True,
        "one_pass": False,
        "model": model_folder(case.shape, scratch, device),
        "prompts": prompts_file(case, num_steps, scratch),
        "num_prompts": case.num_prompts,
        "samples": case.samples,
        "new_tokens": case.reply,
        "forced": True,
        "lora": {"r": 16, "lora_alpha": 32} if case.lora else None,
        "learning_rate": 1e-6,
        "checkpointing": False,
        "device": device,
        "threads": 1 if device == "cpu" else 8,
        "seed": 0,
        "ranks": 1,
        "overrides": ["data.max_prompt_length=4096"],
    }
