"""A server on this machine that answers like an OpenAI-compatible one."""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[dict[str, Any]], tuple[int, Any]]
"""Returns status and body for the body of a request."""


class Server:
    """Answers as `answer` says; keeps every request with its headers."""

    def __init__(self, answer: Answer, path: str = "/v1/chat/completions") -> None:
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.headers: dict[str, str] = {}
        """Of every answer, besides its length."""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.requests.append(body)
                outer.keys.append(self.headers["Authorization"])
                code, said = answer(body) if self.path == path else (404, "no")
                text = json.dumps(said).encode()
                self.send_response(code)
                for header in {**outer.headers, "Content-Length": str(len(text))}.items():
                    self.send_header(*header)
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def said(text: str, reason: str = "stop", tokens: int = 5) -> tuple[int, Any]:
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": reason}
    return 200, {"choices": [choice], "usage": {"completion_tokens": tokens}}
