"""A server on this machine that answers like the Hugging Face Hub, as far as a push goes."""

import hashlib
import json
import re
import threading
from base64 import b64decode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

LFS_FROM_BYTES = 64
TOKEN = "hf_" + "a" * 34


class Repository:
    """Files of each branch, and how the repository was created."""

    def __init__(self, private: bool) -> None:
        self.private = private
        self.branches: dict[str, dict[str, bytes]] = {"main": {".gitattributes": b""}}
        self.messages: list[str] = []

    def sha(self, branch: str) -> str:
        text = repr(sorted(self.branches[branch].items()))
        return hashlib.sha1(text.encode()).hexdigest()


class Hub:
    """Repositories in memory."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.objects: dict[str, bytes] = {}
        self.asked: list[str] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length)
                path = unquote(urlsplit(self.path).path)
                hub.asked.append(f"{self.command} {path}")
                is_upload = path.startswith("/objects/")
                if not is_upload and self.headers["Authorization"] != f"Bearer {TOKEN}":
                    code, said, headers = 401, {"error": "Invalid token"}, {}
                else:
                    code, said, headers = hub.answer(self.command, path, body)
                text = said if isinstance(said, bytes) else json.dumps(said).encode()
                self.send_response(code)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(text)

            do_GET = do_POST = do_PUT = do_HEAD = _answer

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any, dict[str, str]]:
        """Status, content and headers."""
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            if name in self.repositories:
                return 409, {"error": "exists", "url": f"{self.url}/{name}"}, {}
            private = bool(asked.get("private")) or asked.get("visibility") == "private"
            self.repositories[name] = Repository(private)
            return 200, {"url": f"{self.url}/{name}", "name": name}, {}
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}, {}
        if path.startswith("/objects/"):
            self.objects[path.removeprefix("/objects/")] = body
            return 200, b"", {}
        if found := re.fullmatch(r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", path):
            objects = [
                one | {"actions": {"upload": {"href": f"{self.url}/objects/{one['oid']}"}}}
                for one in json.loads(body)["objects"]
            ]
            return 200, {"transfer": "basic", "objects": objects}, {}
        if found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            repository = self.repositories[found[1]]
            content = repository.branches[self._branch(repository, found[2])][found[3]]
            etag = hashlib.sha1(content).hexdigest()
            sha = repository.sha(self._branch(repository, found[2]))
            return 200, content, {"ETag": f'"{etag}"', "X-Repo-Commit": sha}
        found = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(\w+)(?:/(.+))?)?", path)
        if found is None:
            return 404, {"error": f"no {path}"}, {}
        return self._of_repository(found[1], found[2], found[3] or "main", body)

    def _branch(self, repository: Repository, revision: str) -> str:
        return next(
            (one for one in repository.branches if repository.sha(one) == revision), revision
        )

    def _of_repository(
        self, name: str, action: str | None, revision: str, body: bytes
    ) -> tuple[int, Any, dict[str, str]]:
        repository = self.repositories.get(name)
        if repository is None:
            return 404, {"error": "none"}, {"X-Error-Code": "RepoNotFound"}
        if action == "branch":
            repository.branches[revision] = dict(repository.branches["main"])
            return 200, {}, {}
        revision = self._branch(repository, revision)
        if revision not in repository.branches:
            return 404, {"error": "none"}, {"X-Error-Code": "RevisionNotFound"}
        files = repository.branches[revision]
        if action in (None, "revision"):
            siblings = [{"rfilename": path} for path in files]
            info = {"id": name, "sha": repository.sha(revision), "siblings": siblings}
            return 200, info | {"private": repository.private}, {}
        if action == "tree":
            listed = [
                {"type": "file", "path": path, "size": len(content), "oid": "0" * 40}
                for path, content in files.items()
            ]
            return 200, listed, {}
        if action == "preupload":
            modes = [
                {
                    "path": one["path"],
                    "uploadMode": "lfs" if one["path"].endswith(".safetensors") else "regular",
                    "shouldIgnore": False,
                }
                for one in json.loads(body)["files"]
            ]
            return 200, {"files": modes}, {}
        assert action == "commit", action
        return self._commit(name, repository, revision, body)

    def _commit(
        self, name: str, repository: Repository, branch: str, body: bytes
    ) -> tuple[int, Any, dict[str, str]]:
        files = repository.branches[branch]
        for line in body.decode().splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "header":
                parent = value.get("parentCommit")
                if parent is not None and parent != repository.sha(branch):
                    return 412, {"error": "parent"}, {}
                repository.messages.append(value["summary"])
            elif entry["key"] == "file":
                files[value["path"]] = b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                files[value["path"]] = self.objects[value["oid"]]
            elif entry["key"] == "deletedFile":
                files.pop(value["path"])
        sha = repository.sha(branch)
        said = {"success": True, "commitOid": sha, "commitUrl": f"{self.url}/{name}/commit/{sha}"}
        return 200, said, {}
