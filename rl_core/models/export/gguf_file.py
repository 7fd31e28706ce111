"""Export of a language model's folder as one GGUF file, for llama.cpp and what is built on it.

The Llama family alone is written: each family has tensors, names and numbers of its own there.
Weights keep their values as far as the format has them; rows of queries and keys are reordered,
since llama.cpp rotates neighbouring features where transformers rotates halves.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rl_core.errors import ExportMismatch, ModelError
from rl_core.models.export.formats import Numbers

if TYPE_CHECKING:
    from gguf import GGUFWriter

MODEL_FILE = "model.gguf"
ARCHITECTURE = "llama"
NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
LAYER_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)\.weight")
INSTEAD = "use llama.cpp's convert_hf_to_gguf.py on the folder of --format hf"
LARGEST_F16 = 65504.0
LLAMA_3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
"""Beginning of the pattern by which Llama 3's tokenizer splits texts."""


def write_gguf(folder: Path, out: Path, numbers: Numbers) -> None:
    """Write the model of a folder as a GGUF file, with its tokenizer and chat template, and read it
    back.

    Raises: ModelError when the family or the tokenizer is none that this can write; ExportMismatch
    when the file holds other tensors than were written.
    """
    import gguf
    from transformers import AutoConfig, AutoTokenizer

    config = AutoConfig.from_pretrained(folder)
    check_family(config)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    writer = gguf.GGUFWriter(out, ARCHITECTURE)
    _add_shape(writer, config, folder.name, numbers)
    _add_tokenizer(writer, tokenizer, config.vocab_size)
    written: dict[str, np.ndarray] = {}
    for name, tensor in _tensors(folder, config):
        data, kind = _stored(name, tensor, numbers)
        written[name] = data
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    _check(out, written)


def check_family(config: Any) -> None:
    """Raises: ModelError saying why a model of this config cannot be written."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kind = rope.get("rope_type", "default")
    why = None
    if config.model_type != ARCHITECTURE:
        why = f"the family {config.model_type!r} is none of those written as GGUF ({ARCHITECTURE})"
    elif getattr(config, "attention_bias", False) or getattr(config, "mlp_bias", False):
        why = "its layers have biases, which llama.cpp's Llama has not"
    elif kind != "default":
        why = f"its rotations are of the kind {kind!r}, which is not written"
    if why is not None:
        raise ModelError(
            f"--format gguf: {why}; use llama.cpp's convert_hf_to_gguf.py on the folder"
        )


def _add_shape(writer: GGUFWriter, config: Any, name: str, numbers: Numbers) -> None:
    import gguf

    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rope = getattr(config, "rope_parameters", None) or {}
    types = {
        Numbers.F16: gguf.LlamaFileType.MOSTLY_F16,
        Numbers.BF16: gguf.LlamaFileType.MOSTLY_BF16,
        Numbers.Q8_0: gguf.LlamaFileType.MOSTLY_Q8_0,
    }
    writer.add_name(name)
    writer.add_file_type(types[numbers])
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(float(rope.get("rope_theta") or getattr(config, "rope_theta", 1e4)))
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    if numbers is Numbers.Q8_0:
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def _add_tokenizer(writer: GGUFWriter, tokenizer: Any, num_words: int) -> None:
    """Add a byte-level BPE tokenizer. Raises: ModelError for another one."""
    import gguf

    description = json.loads(tokenizer.backend_tokenizer.to_str())
    model = description["model"]
    splits = _splits(description)
    if model["type"] != "BPE" or splits is None:
        raise ModelError(
            "--format gguf: the tokenizer is none of those written as GGUF (byte-level BPE as in "
            f"SmolLM2, GPT-2 or Llama 3); {INSTEAD}"
        )
    words = {number: word for word, number in tokenizer.get_vocab().items()}
    added = tokenizer.added_tokens_decoder
    tokens, types = [], []
    for number in range(num_words):
        tokens.append(words.get(number, f"[PAD{number}]"))
        if number not in words:
            types.append(gguf.TokenType.UNUSED)
        elif number not in added:
            types.append(gguf.TokenType.NORMAL)
        else:
            special = added[number].special
            types.append(gguf.TokenType.CONTROL if special else gguf.TokenType.USER_DEFINED)
    merges = [one if isinstance(one, str) else " ".join(one) for one in model["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(splits)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_add_bos_token(bool(tokenizer.encode("")))
    writer.add_add_space_prefix(False)
    for add, number in (
        (writer.add_bos_token_id, tokenizer.bos_token_id),
        (writer.add_eos_token_id, tokenizer.eos_token_id),
        (writer.add_unk_token_id, tokenizer.unk_token_id),
        (writer.add_pad_token_id, tokenizer.pad_token_id),
    ):
        if number is not None:
            add(number)
    if isinstance(tokenizer.chat_template, str):
        writer.add_chat_template(tokenizer.chat_template)


def _splits(description: dict[str, Any]) -> str | None:
    """Return llama.cpp's name for the way in which a tokenizer splits texts; None if it has none
    for it."""
    if description.get("normalizer") is not None:
        return None
    split = description.get("pre_tokenizer") or {}
    parts = split.get("pretokenizers", []) if split.get("type") == "Sequence" else [split]
    if not parts or parts[-1].get("type") != "ByteLevel" or parts[-1].get("add_prefix_space"):
        return None
    by_words = parts[-1].get("use_regex", True)
    if len(parts) == 1:
        return "gpt-2" if by_words else None
    first = parts[0]
    if len(parts) == 2 and first.get("type") == "Digits":
        if by_words and first.get("individual_digits"):
            return "smollm"
        return None
    pattern = (first.get("pattern") or {}).get("Regex", "")
    is_llama_3 = len(parts) == 2 and first.get("type") == "Split" and pattern.startswith(LLAMA_3)
    if is_llama_3 and not by_words:
        return "llama-bpe"
    return None


def _tensors(folder: Path, config: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the tensors by their names in GGUF, float32, one after the other. Raises: ModelError on
    a tensor without one."""
    import torch
    from safetensors import safe_open

    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in sorted(file.keys()):
                if name == "lm_head.weight" and config.tie_word_embeddings:
                    continue
                tensor = file.get_tensor(name).to(torch.float32).numpy()
                yield _named(name, tensor, config)


def _named(name: str, tensor: np.ndarray, config: Any) -> tuple[str, np.ndarray]:
    if name in NAMES:
        return NAMES[name], tensor
    layer = _LAYER.fullmatch(name)
    if layer is None or layer[2] not in LAYER_NAMES:
        raise ModelError(f"--format gguf: llama.cpp's Llama has no tensor for {name}")
    own = LAYER_NAMES[layer[2]]
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(own)
    return f"blk.{layer[1]}.{own}.weight", tensor if heads is None else _interleaved(tensor, heads)


def _interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Return the rows of each head with those of both halves in turn."""
    shape = rows.shape
    halves = rows.reshape(heads, 2, shape[0] // heads // 2, *shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(shape))


def _stored(name: str, tensor: np.ndarray, numbers: Numbers) -> tuple[np.ndarray, Any]:
    """Return a tensor's content in the file, and its format."""
    import gguf
    from gguf.quants import quantize

    if tensor.ndim == 1:
        return tensor, gguf.GGMLQuantizationType.F32
    kind = gguf.GGMLQuantizationType[numbers.name]
    if numbers is Numbers.Q8_0 and tensor.shape[-1] % 32:
        kind = gguf.GGMLQuantizationType.F16
    if kind is gguf.GGMLQuantizationType.F16 and np.abs(tensor).max() > LARGEST_F16:
        raise ModelError(
            f"--format gguf: {name} has numbers beyond {LARGEST_F16:g}, which float16 has not; use "
            "--numbers bf16"
        )
    return quantize(tensor, kind), kind


def _check(out: Path, written: dict[str, np.ndarray]) -> None:
    """Read the file back. Raises: ExportMismatch when its tensors are not those written."""
    import gguf

    found = {tensor.name: tensor.data for tensor in gguf.GGUFReader(out).tensors}
    bad = []
    for name, data in written.items():
        if name not in found or found[name].tobytes() != data.tobytes():
            bad.append(name)
    if bad or len(found) != len(written):
        raise ExportMismatch(f"{out}: {bad[:3] or 'tensors'} were not read back as written")
