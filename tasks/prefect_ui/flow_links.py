"""Tags of an MLflow run that link it to its flow run, and to the chain whose stage it is."""

import os

from prefect.runtime import flow_run

from rl_core.services.exposure import LOCAL_API
from schemas.receipts import ModelReceipt

CHAIN = "chain"
"""Name, and first part of the names, of the tags that say of a flow run which stage it is."""


def chain_tags(chain: str, stage: str, start: ModelReceipt | None) -> list[str]:
    """Return the tags of the flow run of a stage, from which those of its MLflow run are taken.

    Args: start: version that its training starts from; None for a model of its own.
    """
    tags = {CHAIN: chain, f"{CHAIN}.stage": stage}
    if start is not None:
        tags[f"{CHAIN}.from"] = f"models:/{start.name}/{start.version}"
    return [f"{key}={value}" for key, value in tags.items()]


def flow_run_tags() -> dict[str, str]:
    """Return the id and the page of this flow run, empty outside a flow run, and which stage of a
    chain it is."""
    named = (tag.partition("=") for tag in flow_run.tags or ())
    chain = {}
    for key, _, value in named:
        if key.split(".")[0] == CHAIN and value:
            chain[key] = value
    return {**chain, **page_tags()}


def page_tags() -> dict[str, str]:
    """Return the id and the page of this flow run; the page is empty where the server ends with the
    run."""
    # Without a server's UI Prefect builds an address that begins with `None`.
    url = str(flow_run.ui_url or "")
    own = os.environ.get(LOCAL_API)
    stays = "://" in url and not (own and url.startswith(own.removesuffix("/api") + "/"))
    return {
        "prefect.flow_run_id": str(flow_run.id or ""),
        "prefect.flow_run_url": url if stays else "",
    }
