"""Check that the Hugging Face hub answers, for messages about a name that is no file here."""

from rl_core.errors import causes

HEARTBEAT_S = 5.0
"""Seconds that the hub may take to answer anything at all."""


def is_unreachable(error: BaseException | None) -> bool:
    """Return True if an error, or one that it came of, says that no server answered.

    huggingface_hub changes its HTTP library between versions; each calls such errors
    `TransportError`.
    """
    for one in causes(error):
        if any(kind.__name__ == "TransportError" for kind in type(one).__mro__):
            return True
    return False


def hub_problem() -> str | None:
    """Return why the hub cannot be asked: offline mode, or no answer; None if it answers."""
    from huggingface_hub.constants import ENDPOINT, is_offline_mode

    if is_offline_mode():
        return "the Hugging Face hub is not asked (HF_HUB_OFFLINE is set)"
    import httpx

    try:
        httpx.head(ENDPOINT, timeout=HEARTBEAT_S)
    except (httpx.TransportError, httpx.InvalidURL) as error:
        return unreachable(error)
    return None


def unreachable(error: BaseException) -> str:
    """Say that the hub cannot be reached, and why."""
    reason = str(error).strip().splitlines()
    return (
        f"the Hugging Face hub cannot be reached ({reason[0] if reason else type(error).__name__})"
    )
