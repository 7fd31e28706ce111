"""What a person sees in the Prefect UI before a run: every parameter says what it is for."""

from typing import Any

import pytest
import yaml
from prefect.flows import Flow

from flows.rl_evaluate import rl_evaluate
from flows.rl_prepare import rl_prepare
from flows.rl_train import rl_train
from rl_core.services.catalogue import PROJECT_FILE

FLOWS = {flow.fn.__name__: flow for flow in (rl_train, rl_evaluate, rl_prepare)}
DEPLOYMENTS = yaml.safe_load(PROJECT_FILE.read_text())["deployments"]


@pytest.mark.parametrize("flow", FLOWS.values(), ids=FLOWS)
def test_every_parameter_of_a_form_is_described(flow: Flow[Any, Any]):
    properties = flow.parameters.model_dump()["properties"]
    assert properties
    assert [name for name, shown in properties.items() if not shown.get("description")] == []
    assert flow.description


@pytest.mark.parametrize(
    "deployment", DEPLOYMENTS, ids=lambda one: f"{one['entrypoint'].split(':')[1]}/{one['name']}"
)
def test_a_deployment_says_what_it_is_and_sets_parameters_that_there_are(
    deployment: dict[str, Any],
):
    flow = FLOWS[deployment["entrypoint"].split(":")[1]]
    known = flow.parameters.model_dump()["properties"]
    assert set(deployment["parameters"]) <= set(known)
    for trigger in deployment.get("triggers", ()):
        flow.validate_parameters(deployment["parameters"] | trigger["parameters"])
    for schedule in deployment.get("schedules", ()):
        assert "parameters" not in schedule, "they are gone as soon as it is switched on"
    assert deployment["description"] and deployment["tags"]
