"""Suppression of irrelevant messages of the model libraries about diffusion pipelines."""

from __future__ import annotations

import logging

NO_NEWS = ("transformers.utils.import_utils", "diffusers.pipelines.pipeline_utils")
"""Loggers to silence. The first warns that image processors run without torchvision, which this
project does not use; the second that an absent text encoder cannot be saved."""


def quiet_pipelines() -> None:
    """Let these loggers report errors only. Call this before a pipeline's class is imported."""
    for name in NO_NEWS:
        logging.getLogger(name).setLevel(logging.ERROR)
