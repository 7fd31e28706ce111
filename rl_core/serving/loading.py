"""Loading of a model behind the endpoint."""

from __future__ import annotations

import time

from rl_core.envs.calls.forms import FORMS, ToolFormat, form_of
from rl_core.serving.batching import MAX_ROWS, MAX_WAITING, InProcessEngine
from rl_core.serving.endpoint import Endpoint
from rl_core.serving.served_model import ServedModel
from schemas.sections.policy import ModelConfig


def load_endpoint(
    source: str,
    config: ModelConfig,
    device: str,
    *,
    name: str,
    tool_format: ToolFormat | None = None,
    max_rows: int = MAX_ROWS,
    max_waiting: int = MAX_WAITING,
) -> Endpoint:
    """Load a model and start its engine.

    Args: source: result of `locate`. name: of the model in requests. tool_format: how it writes
    calls of tools; None reads that from its chat template. Raises: ModelError.
    """
    model = ServedModel(source, config, device)
    template = str(model.tokenizer.chat_template)
    form = form_of(template) if tool_format is None else FORMS[tool_format]
    engine = InProcessEngine(
        model.policy, model.pad_id, model.chat.decode, max_rows=max_rows, max_waiting=max_waiting
    )
    return Endpoint(engine, model, name, form, max_rows, int(time.time()))
