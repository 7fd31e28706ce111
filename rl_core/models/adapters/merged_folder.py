"""A whole model from a folder of adapters: base and adapters merged, written once and kept."""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from pathlib import Path

import torch
from torch import Tensor

from rl_core.data.prepare.tokenizer import Tokenizer
from rl_core.data.store.atomic import disk_errors
from rl_core.errors import ModelError
from rl_core.models.adapters.exported import ADAPTER_CONFIG, AdapterFolder
from rl_core.models.adapters.lora import inject_lora, is_adapter, load_adapters


def merged_folder(adapters: AdapterFolder, base: str, models_dir: Path) -> Path:
    """Return a folder with the adapters merged into their base, which is made on first use and
    again when either has changed.

    Args: base: the located base. Raises: ModelError when the adapters do not fit the base;
    StorageError when it cannot be written.
    """
    from filelock import FileLock

    folder = models_dir / f"merged-{_identity(adapters, base)}"
    models_dir.mkdir(parents=True, exist_ok=True)
    with FileLock(models_dir / f".{folder.name}.lock"):
        if not folder.is_dir():
            building = models_dir / f".build-{uuid.uuid4().hex[:8]}"
            try:
                with disk_errors(folder):
                    _merge(adapters, base, building)
                    os.replace(building, folder)
            finally:
                shutil.rmtree(building, ignore_errors=True)
    return folder


def check_tokenizer(adapters: AdapterFolder, base: str) -> None:
    """Check that the tokenizer beside adapters, if there is one, is that of their base. Raises:
    ModelError."""
    from rl_core.models.chat.tokenizer import load_tokenizer

    if not (adapters.folder / "tokenizer_config.json").is_file():
        return
    own: Tokenizer = load_tokenizer(str(adapters.folder))
    theirs = load_tokenizer(base)
    for what, same in (
        ("tokens", own.get_vocab() == theirs.get_vocab()),
        ("chat template", own.chat_template == theirs.chat_template),
    ):
        if not same:
            raise ModelError(
                f"model.path {adapters.folder}: the {what} of the tokenizer beside the adapters "
                f"are not those of the base {base}; merge the adapters with the tool that trained "
                "them and name that folder"
            )


def _merge(adapters: AdapterFolder, base: str, out: Path) -> None:
    from rl_core.models.bundle import ModelBundle
    from rl_core.models.checks.comparison import Live
    from schemas.sections.policy import ModelConfig

    check_tokenizer(adapters, base)
    bundle = ModelBundle(base, ModelConfig(path=adapters.base))
    policy = bundle.policy.eval()
    inject_lora(policy, adapters.lora, seed=0)
    load_adapters(policy, adapters.weights)
    trained: dict[str, Tensor] = {}
    for name, value in policy.named_parameters():
        if is_adapter(name):
            trained[name] = value
    live = Live(bundle.said_by(policy, torch.device("cpu")), torch.float32)
    bundle.export(trained, adapters.lora, out, live)


def _identity(adapters: AdapterFolder, base: str) -> str:
    """Return a digest of the adapters' content and of which base they are over.

    A base folder is known by the names, sizes and times of its files: reading all of it would take
    longer than the merge saves.
    """
    digest = hashlib.sha256(base.encode())
    if Path(base).is_dir():
        for file in sorted(path for path in Path(base).iterdir() if path.is_file()):
            stat = file.stat()
            digest.update(f"{file.name} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    for file in (adapters.folder / ADAPTER_CONFIG, adapters.weights):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
