"""Tags of an MLflow run that link it to its flow run."""

from prefect.runtime import flow_run


def flow_run_tags() -> dict[str, str]:
    """Return the id and the page of this flow run; empty outside a flow run."""
    url = str(
        flow_run.ui_url or ""
    )  # without a server's UI Prefect builds one that begins with `None`
    return {
        "prefect.flow_run_id": str(flow_run.id or ""),
        "prefect.flow_run_url": url if "://" in url else "",
    }
