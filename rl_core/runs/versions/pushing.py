"""Upload of a version or an iteration to the Hugging Face Hub, as one commit."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_core.data.store.atomic import atomic_write_text
from rl_core.errors import ModelError, ServiceError, StorageError, Unreachable
from rl_core.runs.versions.exporting import export_as
from rl_core.runs.versions.iterations import find_iteration
from rl_core.runtime.home import Home
from rl_core.tracking.lineage import RunLineage, trace, trace_run
from rl_core.tracking.model_folder import LINEAGE

if TYPE_CHECKING:
    from huggingface_hub import HfApi

MAIN = "main"
OF_A_NEW_REPOSITORY = {".gitattributes"}
"""Files that a repository has before anybody put anything there."""


@dataclass(frozen=True)
class Pushed:
    """Result of a push."""

    url: str
    """Page of the commit, or of the repository if nothing was new."""
    is_new: bool
    """False if the repository had all of it already."""


def push(
    model: str,
    version: int | None,
    repository: str,
    home: Home,
    *,
    private: bool = False,
    revision: str | None = None,
    overwrite: bool = False,
) -> Pushed:
    """Upload a model with its card and lineage to a repository, which is created if need be.

    The token is that of `HF_TOKEN` or of `hf auth login`. Files of an earlier push that the model
    does not have are removed in the same commit. Args: revision: branch; None for `main`.
    overwrite: replace what another model or person put there.
    Raises: ServiceError without a token or when the hub refuses; StorageError when the repository
    holds something else; Unreachable.
    """
    from huggingface_hub import HfApi, get_token

    _check_name(repository)
    lineage = _lineage(model, version, home)
    token = get_token()
    if token is None:
        raise ServiceError(
            "no token of the Hugging Face Hub: set HF_TOKEN, or log in with `hf auth login`"
        )
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None, token=token)
    branch = revision or MAIN
    with _hub_errors(repository), tempfile.TemporaryDirectory() as folder:
        parent = _head(api, repository, branch)
        if parent is not None and not overwrite:
            _check_ours(api, repository, branch, lineage)
        written = export_as(model, version, home, Path(folder) / "model", None)
        atomic_write_text(written / LINEAGE, json.dumps(lineage.public(), indent=2) + "\n")
        if parent is None:
            api.create_repo(repository, private=private, exist_ok=True)
            if branch != MAIN:
                api.create_branch(repository, branch=branch, exist_ok=True)
        # One commit, where `upload_folder` may make several, so that no reader sees half a model.
        done = api.create_commit(
            repository,
            _operations(api, repository, branch, written),
            revision=branch,
            commit_message=f"{_name(lineage)}: weights, card and lineage",
            # What somebody else pushes in the meantime is not overwritten.
            parent_commit=parent,
        )
    return Pushed(str(done.commit_url), is_new=done.oid != parent)


def _operations(api: HfApi, repository: str, branch: str, folder: Path) -> list[Any]:
    """Return what makes a branch hold the files of a folder and no others."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    added = {path.relative_to(folder).as_posix(): path for path in paths}
    there = set(api.list_repo_files(repository, revision=branch)) - OF_A_NEW_REPOSITORY
    return [
        *(CommitOperationAdd(name, path) for name, path in added.items()),
        *(CommitOperationDelete(name) for name in sorted(there - added.keys())),
    ]


def _lineage(model: str, version: int | None, home: Home) -> RunLineage:
    kept = find_iteration(model, home) if version is None else None
    if kept is None:
        return trace(home.mlflow_uri, model, version)
    run_id = kept.folder.mlflow_run_id
    if run_id is None:
        raise StorageError(f"{kept.folder.root}: the run has no run.json; it was never opened")
    return trace_run(home.mlflow_uri, run_id)


def _name(lineage: RunLineage) -> str:
    public = lineage.public()
    if "name" in public:
        return f"{public['name']} v{public['version']}"
    return f"run {lineage.run_name or lineage.run_id}"


def _check_name(repository: str) -> None:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise ModelError(f"{repository!r}: expected ORGANISATION/NAME: {error}") from error
    if "/" not in repository:
        raise ModelError(f"{repository!r}: expected ORGANISATION/NAME")


def _head(api: HfApi, repository: str, branch: str) -> str | None:
    """Return the last commit of a branch; None if it or the repository does not exist."""
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    try:
        return api.repo_info(repository, revision=branch).sha
    except RevisionNotFoundError:
        return None
    except RepositoryNotFoundError as error:
        # The hub says so of a private one, too, that the token may not see.
        if error.response.status_code in (401, 403):
            raise
        return None


def _check_ours(api: HfApi, repository: str, branch: str, lineage: RunLineage) -> None:
    """Raises: StorageError when a repository holds something else than this model's versions."""
    names = set(api.list_repo_files(repository, revision=branch))
    if names <= OF_A_NEW_REPOSITORY:
        return
    found: Any = {}
    if LINEAGE in names:
        path = api.hf_hub_download(repository, LINEAGE, revision=branch, force_download=True)
        try:
            found = json.loads(Path(path).read_text(encoding="utf-8"))
        except ValueError:
            found = {}
    own = lineage.public()
    key = "name" if "name" in own else "run_key"
    there = found.get(key) if isinstance(found, dict) else None
    if there != own[key]:
        what = f"{key} {there!r}" if there else f"{len(names)} files of another origin"
        raise StorageError(
            f"{repository} holds {what}, not {own[key]!r}; name another repository, or replace it "
            "with --overwrite"
        )


@contextmanager
def _hub_errors(repository: str) -> Iterator[None]:
    """Tell errors of the hub in one sentence."""
    import httpx
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    try:
        yield
    except OfflineModeIsEnabled as error:
        raise ServiceError("HF_HUB_OFFLINE is set, so nothing can be pushed; unset it") from error
    except HfHubHTTPError as error:
        code = error.response.status_code
        said = error.server_message or str(error).strip().splitlines()[0]
        if code >= httpx.codes.INTERNAL_SERVER_ERROR or code == httpx.codes.TOO_MANY_REQUESTS:
            raise Unreachable(f"the hub answers {code} for {repository}: {said:.200}") from error
        if code == httpx.codes.PRECONDITION_FAILED:
            raise StorageError(f"{repository} was changed meanwhile; push again") from error
        raise ServiceError(
            f"the hub refuses {repository} ({code}): {said:.200}; the token needs write access"
        ) from error
    except httpx.TransportError as error:
        raise Unreachable(f"the hub does not answer: {error}") from error
