"""Suppression of messages of the model libraries about what this project does not use."""

from __future__ import annotations

import logging
import warnings

NO_NEWS = (
    "transformers.utils.import_utils",
    "diffusers.pipelines.pipeline_utils",
    "bitsandbytes.backends.cpu.ops",
)
"""Loggers to silence. The first warns that image processors run without torchvision, which this
project does not use; the second that an absent text encoder cannot be saved. The third, which any
import of peft calls up on a processor with AVX512-BF16, asks for a kernel from the model hub."""

OLD_NAME = "`is_gradient_checkpointing` is deprecated"
"""Beginning of a warning of transformers about a name that peft uses."""


def quiet_libraries() -> None:
    """Let these loggers report errors only, and leave that warning out. Call this before the
    libraries are imported."""
    warnings.filterwarnings("ignore", OLD_NAME)
    for name in NO_NEWS:
        logging.getLogger(name).setLevel(logging.ERROR)
