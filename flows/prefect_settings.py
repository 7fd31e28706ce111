"""Settings of Prefect's own, such as `PREFECT_LOGGING_LEVEL`, with a value that Prefect refuses."""

from __future__ import annotations

import os
import sys
import tomllib
from typing import Any

from rl_core.runtime.home import Home


def check_prefect_settings() -> None:
    """Have Prefect read its settings, before a flow does. Call it once the address of the server is
    among them (`start_local_api`): Prefect reads them only once.

    Raises: pydantic's ValidationError, for `refused_setting`.
    """
    import prefect.settings.context

    prefect.settings.context.get_current_settings()


def refused_setting(error: ValueError) -> str | None:
    """Return which environment variable has which wrong value, or which file of settings is
    damaged, if that is what `error` is about."""
    if isinstance(error, tomllib.TOMLDecodeError) and "prefect" in sys.modules:
        named = os.environ.get("PREFECT_PROFILES_PATH")
        file = named or f"{Home.default().prefect}/profiles.toml"
        return f"{file}, or a prefect.toml or pyproject.toml here, is no TOML ({error}); mend it"
    title, errors = getattr(error, "title", ""), getattr(error, "errors", None)
    of_prefect = any(
        name.startswith("prefect.settings") and hasattr(module, title)
        for name, module in [*sys.modules.items()]
    )
    if not title or not of_prefect or errors is None:
        return None
    said = [_said(one) for one in errors() if "default_factory" not in one["type"]]
    return "; ".join(said) or None


def _said(one: dict[str, Any]) -> str:
    key, value = str(one["loc"][-1] if one["loc"] else ""), one.get("input")
    names = [
        name
        for name, set_to in os.environ.items()
        if name.startswith("PREFECT_") and name.endswith(key.upper()) and set_to == str(value)
    ]
    setting = " or ".join(names) or f"a setting of Prefect's, {key}"
    return f"{setting}: got {value!r:.80}; {one['msg']}"
