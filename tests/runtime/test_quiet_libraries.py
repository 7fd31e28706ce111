"""Messages of libraries that say nothing about a run."""

import subprocess
import sys

import pytest

CODE = """
import rl_core
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM
config = LlamaConfig(
    vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
)
get_peft_model(LlamaForCausalLM(config), LoraConfig(target_modules=["q_proj"]))
"""


@pytest.mark.slow
def test_a_first_adapter_prints_nothing():
    """bitsandbytes, which peft imports, asks for a kernel of the model hub on some processors; and
    peft reads an attribute of transformers' by its old name."""
    ended = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, check=True, timeout=120
    )
    assert ended.stdout + ended.stderr == ""
