"""Formats of exported models."""

from enum import StrEnum


class ModelFormat(StrEnum):
    """Content of an exported folder."""

    HF = "hf"
    """A whole model, as transformers and diffusers load it."""
    ADAPTER = "adapter"
    """Adapters alone, which name their base."""
    GGUF = "gguf"
    """One file for llama.cpp."""


class Numbers(StrEnum):
    """Number format of a GGUF file's matrices; vectors are in float32."""

    F16 = "f16"
    BF16 = "bf16"
    Q8_0 = "q8_0"
    """Blocks of 32 numbers of 8 bits with a common scale."""
