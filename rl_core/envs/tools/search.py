"""The search tool: queries a retrieval server over HTTP, such as `rl-train serve-search` or one of
Search-R1.

A server takes `POST {"query", "topk", "return_scores"}` and answers `{"result": [[{"document":
{"contents": ...}}]]}`. Whatever the server does, the tool answers within its deadline, and an error
is text for the model.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from rl_core.envs.tools.core import ToolGroup, tool
from rl_core.envs.tools.shared import Shared
from rl_core.runtime.bounded_answers import AnswerTooLong, read_bounded

if TYPE_CHECKING:
    pass

MAX_ANSWER_BYTES = 4 * 2**20
MAX_SHOWN_CHARACTERS = 20_000
MAX_REASON_CHARACTERS = 300
FIRST_PAUSE_S = 0.1
RETRIED_STATUS = frozenset({408, 429, 500, 502, 503, 504})


class SearchError(Exception):
    """The server gave no usable answer; the message has the details."""


class _Retriable(SearchError):
    """A failure that another try may resolve."""


class SearchClient:
    """Connection pool of one server. Thread-safe."""

    def __init__(self, url: str) -> None:
        import httpx

        self.url = url
        self._http = httpx.Client(
            limits=httpx.Limits(max_connections=64), trust_env=False, follow_redirects=False
        )

    def search(self, query: str, *, topk: int, timeout_s: float, max_tries: int) -> list[str]:
        """Return the contents of the documents found, best first; empty if there are none.

        Args: timeout_s: for all tries together. Raises: SearchError.
        """
        deadline = time.monotonic() + timeout_s
        for attempt in range(max_tries):
            try:
                return _documents(self._ask(query, topk, deadline))
            except _Retriable:
                pause = FIRST_PAUSE_S * 2**attempt
                if attempt + 1 == max_tries or time.monotonic() + pause >= deadline:
                    raise
                time.sleep(pause)
        raise SearchError("no try was made")

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _ask(self, query: str, topk: int, deadline: float) -> bytes:
        import httpx

        left = deadline - time.monotonic()
        if left <= 0:
            raise SearchError("the deadline has passed")
        payload = {"query": query, "topk": topk, "return_scores": True}
        try:
            with self._http.stream("POST", self.url, json=payload, timeout=left) as response:
                body = read_bounded(response, MAX_ANSWER_BYTES, deadline)
        except AnswerTooLong as error:
            raise SearchError(str(error)) from error
        except (httpx.TimeoutException, TimeoutError) as error:
            raise SearchError("the server did not answer in time") from error
        except httpx.TransportError as error:
            raise _Retriable(f"the server cannot be reached ({error})") from error
        if response.status_code == 200:
            return body
        reason = body.decode("utf-8", "replace").strip()[:MAX_REASON_CHARACTERS]
        kind = _Retriable if response.status_code in RETRIED_STATUS else SearchError
        raise kind(f"HTTP {response.status_code} {response.reason_phrase} {reason}".rstrip())


def _documents(body: bytes) -> list[str]:
    try:
        groups = json.loads(body)["result"]
        found = []
        for item in _flat(groups):
            found.append(item["document"]["contents"] if "document" in item else item["contents"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise SearchError(
            'the answer is not {"result": [[{"document": {"contents": ...}}]]}'
        ) from error
    return [str(contents).strip() for contents in found]


def _flat(groups: Any) -> list[Any]:
    return [item for group in groups for item in (group if isinstance(group, list) else [group])]


search_clients: Shared[str, SearchClient] = Shared(SearchClient)
"""The clients of this process, one per address."""


class SearchToolGroup(ToolGroup):
    """Tool group with one tool, `search`."""

    def __init__(
        self, search_url: str, topk: int = 3, timeout: float = 30.0, max_tries: int = 3
    ) -> None:
        """Create the tool and lease a client.

        Args: topk: number of documents per search. timeout: seconds for one search, including
        retries.
        """
        super().__init__()
        self.topk, self.timeout_s, self.max_tries = topk, timeout, max_tries
        self._client = search_clients.lease(search_url)

    @tool
    def search(self, query: str | None) -> str:
        """Return `{"result": "Doc 1: ..."}`; with no documents or an error, `result` says so
        (`Search error: ...`)."""
        return json.dumps({"result": self._found(query)}, ensure_ascii=False)

    def close(self) -> None:
        """Release the connections."""
        self._client.release()

    def _found(self, query: str | None) -> str:
        # Half a character, as a cut token leaves it, is no valid text.
        query = (query or "").encode("utf-8", "replace").decode().strip()
        if not query:
            return "Search error: the query is empty"
        try:
            documents = self._client.value.search(
                query, topk=self.topk, timeout_s=self.timeout_s, max_tries=self.max_tries
            )
        except SearchError as error:
            return f"Search error: {error}"
        text = "\n\n".join(
            f"Doc {number}: {contents}" for number, contents in enumerate(documents, start=1)
        )
        return text[:MAX_SHOWN_CHARACTERS] or "No search results found."
