"""A tiny real tokenizer with a chat template, and row files."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'system' and no_system is defined %}{{ "
    "raise_exception('no system') }}{% endif %}{{ m['role'] }} {{ m['content'] }} {% endfor %}{% "
    "if add_generation_prompt %}assistant{% endif %}"
)
ALLOWED = {"gsm8k": frozenset({"string", "number"}), "reasoning_gym": frozenset({"string"})}


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<unk>", "<pad>", "system", "user", "assistant", *map(str, range(10))]
    inner = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>")
    )
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", pad_token="<pad>")
    made.chat_template = TEMPLATE
    return made


def make_row(text: str = "1 2", answer: Any = "3", **more: Any) -> dict[str, Any]:
    return {
        "prompt": [{"role": "user", "content": text}],
        "env_class": "gsm8k",
        "reward_spec": {"method": "rule", "ground_truth": answer},
        **more,
    }


def write_jsonl(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def jsonl(tmp_path: Path) -> Callable[..., Path]:
    return lambda name, rows: write_jsonl(tmp_path / name, rows)


@pytest.fixture
def good_row() -> Callable[..., dict[str, Any]]:
    return make_row


@pytest.fixture
def allowed() -> dict[str, frozenset[str]]:
    return ALLOWED


@pytest.fixture(scope="session")
def png() -> bytes:
    """The bytes of a small picture."""
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (4, 4)).save(file, "PNG")
    return file.getvalue()
