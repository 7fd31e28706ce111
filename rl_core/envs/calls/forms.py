"""Choice of the form in which a model writes calls."""

from __future__ import annotations

from enum import StrEnum

from rl_core.envs.calls.form import CallForm
from rl_core.envs.calls.hermes import Hermes
from rl_core.envs.calls.llama import Llama
from rl_core.envs.calls.mistral import Mistral
from rl_core.envs.calls.pythonic import Pythonic


class ToolFormat(StrEnum):
    """Form of calls."""

    HERMES = "hermes"
    LLAMA = "llama"
    MISTRAL = "mistral"
    PYTHONIC = "pythonic"


FORMS: dict[ToolFormat, CallForm] = {
    ToolFormat.HERMES: Hermes(),
    ToolFormat.LLAMA: Llama(),
    ToolFormat.MISTRAL: Mistral(),
    ToolFormat.PYTHONIC: Pythonic(),
}
SIGNS = (
    ("<tool_call>", ToolFormat.HERMES),
    ("[TOOL_CALLS]", ToolFormat.MISTRAL),
    ("<|tool_call_start|>", ToolFormat.PYTHONIC),
    ("[func_name1(", ToolFormat.PYTHONIC),
    ("<|python_tag|>", ToolFormat.LLAMA),
    ('"parameters": dictionary', ToolFormat.LLAMA),
)
"""Texts of chat templates, and the form that they stand for."""


def form_of(template: str | None) -> CallForm | None:
    """Return the form of a chat template's calls; None where none is known."""
    found = next((form for sign, form in SIGNS if sign in (template or "")), None)
    return None if found is None else FORMS[found]
