"""A server with the part of SandboxFusion's API that is asked here: `POST /run_code` runs a program
in a folder of its own. Like a test's server, it isolates nothing."""

import base64
import json
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class FusionServer:
    """The server, on a free port of this machine."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.broken = 0
        """Number of requests that it will fail itself."""
        self.failure: dict[str, Any] = {"status": "SandboxError", "run_result": None}
        """What it then answers."""
        own = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                answer: dict[str, Any] = {"detail": "Not Found"}
                # Others may still ask a server of theirs that had this port.
                if self.path == "/run_code":
                    own.requests.append(body)
                    answer = own.answer(body)
                data = json.dumps(answer).encode()
                self.send_response(200 if self.path == "/run_code" else 404)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        """Run a program as the server's documentation says."""
        if self.broken:
            self.broken -= 1
            return {"message": "no pod", "files": {}} | self.failure
        assert body["language"] == "python"
        with tempfile.TemporaryDirectory() as folder:
            for name, data in body["files"].items():
                (Path(folder) / name).write_bytes(base64.b64decode(data))
            (Path(folder) / "main.py").write_text(body["code"])
            started, ran = time.monotonic(), {"status": "Finished", "return_code": None}
            try:
                done = subprocess.run(
                    [sys.executable, "main.py"],
                    cwd=folder,
                    input=body.get("stdin") or "",
                    capture_output=True,
                    text=True,
                    timeout=body["run_timeout"],
                )
                ran |= {"return_code": done.returncode, "stdout": done.stdout}  # type: ignore[dict-item]
                ran |= {"stderr": done.stderr}
            except subprocess.TimeoutExpired:
                ran |= {"status": "TimeLimitExceeded", "stdout": "", "stderr": ""}
            ran |= {"execution_time": time.monotonic() - started}  # type: ignore[dict-item]
            files = {}
            for name in body["fetch_files"]:
                if (file := Path(folder) / name).is_file():
                    files[name] = base64.b64encode(file.read_bytes()).decode()
        status = "Success" if ran["return_code"] == 0 else "Failed"
        return {"status": status, "message": "", "run_result": ran, "files": files}

    def close(self) -> None:
        """End the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
