"""What leads from an MLflow run to the flow run that worked on it."""

from prefect.runtime import flow_run


def flow_run_tags() -> dict[str, str]:
    """Id and page of this flow run; empty where there is none."""
    url = str(flow_run.ui_url or "")  # without a server's UI Prefect builds one that begins with `None`
    return {"prefect.flow_run_id": str(flow_run.id or ""), "prefect.flow_run_url": url if "://" in url else ""}
