"""A GGUF file holds the model: read by others, it computes and splits texts as the folder does."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from rl_core.errors import ModelError
from rl_core.models.export.formats import Numbers
from rl_core.models.export.gguf_file import write_gguf

TEXTS = ["Hello  world, it's 2024!\n\n\tdéjà vu <|im_end|>", "1234 + 5 = 12 39"]
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def byte_tokenizer(*, digits: bool) -> Any:
    """A trained byte-level BPE tokenizer, with digits one by one as in SmolLM2 or without."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False)
    parts = [pre_tokenizers.Digits(individual_digits=True)] if digits else []
    backend.pre_tokenizer = pre_tokenizers.Sequence([*parts, by_bytes]) if digits else by_bytes
    backend.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(TEXTS * 3 + ["hello world it is what it is"] * 3, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def llama(folder: Path, *, tied: bool = True, **changes: Any) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = byte_tokenizer(digits=changes.pop("digits", False))
    shape: dict[str, Any] = {
        "vocab_size": len(tokenizer) + 5,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "rope_theta": 5000.0,
        "tie_word_embeddings": tied,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig(**shape, **changes)).half().float()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("tied", [True, False])
def test_transformers_reads_the_same_model_and_tokenizer_from_it(tmp_path: Path, tied: bool):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = llama(tmp_path / "model", tied=tied)
    write_gguf(folder, tmp_path / "model.gguf", Numbers.F16)
    ours = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="model.gguf", dtype=torch.float32
    )
    for name, tensor in ours.state_dict().items():
        assert torch.equal(theirs.state_dict()[name], tensor), name
    ids = torch.arange(3, 40)[None]
    assert torch.equal(theirs(ids).logits, ours(ids).logits)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    read = AutoTokenizer.from_pretrained(tmp_path, gguf_file="model.gguf")
    for text in TEXTS:
        assert read.encode(text) == tokenizer.encode(text)
    assert read.chat_template == TEMPLATE
    assert (read.eos_token, read.bos_token) == ("<|im_end|>", "<|im_start|>")


def test_eight_bits_are_the_nearest_of_their_block(tmp_path: Path):
    folder = llama(tmp_path / "model", digits=True)
    write_gguf(folder, tmp_path / "model.gguf", Numbers.Q8_0)
    reader = gguf.GGUFReader(tmp_path / "model.gguf")
    fields = {name: field.contents() for name, field in reader.fields.items() if field.data}
    assert fields["tokenizer.ggml.pre"] == "smollm"
    assert fields["llama.attention.head_count_kv"] == 2
    (embedding,) = (one for one in reader.tensors if one.name == "token_embd.weight")
    assert embedding.tensor_type is gguf.GGMLQuantizationType.Q8_0
    read = gguf.quants.dequantize(embedding.data, embedding.tensor_type)
    from safetensors.numpy import load_file

    wanted = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    # Half a step, and the rounding of the step itself to float16.
    blocks = np.abs(wanted).reshape(len(wanted), -1, 32).max(-1, keepdims=True)
    error = np.abs(read - wanted).reshape(len(wanted), -1, 32)
    assert (error <= blocks * (0.5 / 127 + 2**-11) + 1e-6).all()


def test_what_cannot_be_written_is_refused_with_its_reason(tmp_path: Path, tiny_model_dir: Path):
    from transformers import Qwen2Config, Qwen2ForCausalLM

    out = tmp_path / "model.gguf"
    config = Qwen2Config(
        vocab_size=300,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    Qwen2ForCausalLM(config).save_pretrained(tmp_path / "qwen")
    with pytest.raises(ModelError, match="the family 'qwen2' is none of those"):
        write_gguf(tmp_path / "qwen", out, Numbers.F16)
    with pytest.raises(ModelError, match="biases"):
        write_gguf(llama(tmp_path / "biased", attention_bias=True), out, Numbers.F16)
    with pytest.raises(ModelError, match="byte-level BPE"):
        write_gguf(tiny_model_dir, out, Numbers.F16)
