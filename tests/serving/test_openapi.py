"""Requests made from the OpenAPI document: whatever a client sends, the server does not fail."""

import pytest

from tests.serving.conftest import Running
from tests.serving.fuzzing import SCHEMATHESIS, fuzz

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance"


@pytest.mark.skipif(
    not SCHEMATHESIS.is_file(), reason="`make .venv-schemathesis/.installed` builds what this needs"
)
def test_no_request_is_answered_with_a_fault_of_the_server(served: Running) -> None:
    *said, code = fuzz(served.url, "none", 20, CHECKS).splitlines()
    assert code == "0", "\n".join(said)
