"""Requests made from the OpenAPI document: whatever a client sends, the server does not fail."""

import re

import httpx
import pytest

from tests.serving.conftest import Running
from tests.serving.fuzzing import SCHEMATHESIS, fuzz

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance"


@pytest.mark.skipif(
    not SCHEMATHESIS.is_file(), reason="`make .venv-schemathesis/.installed` builds what this needs"
)
@pytest.mark.parametrize("name", ["served", "seeing"])
def test_no_request_is_answered_with_a_fault_of_the_server(
    name: str, request: pytest.FixtureRequest
) -> None:
    server: Running = request.getfixturevalue(name)
    *said, code = fuzz(server.url, "none", 20, CHECKS).splitlines()
    assert code == "0", "\n".join(said)


def test_the_document_says_what_a_picture_is(seeing: Running) -> None:
    said = httpx.get(f"{seeing.url}/openapi.json", trust_env=False).json()
    parts = said["components"]["schemas"]
    assert {"text", "image_url"} <= parts["Part"]["properties"].keys()
    assert parts["ImageUrl"]["required"] == ["url"]
    assert re.match(parts["ImageUrl"]["properties"]["url"]["pattern"], "data:image/png;base64,")
