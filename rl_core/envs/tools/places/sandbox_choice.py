"""Places where a model's programs may run, as a recipe names them: `sandbox: bubblewrap`, `sandbox:
docker`, `sandbox: {remote: "http://host:8080"}`."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, TypeAlias

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from schemas.sections.section import Section

IMAGE = "python:3.12-slim"
"""Image of a container whose recipe names none."""


class SandboxMode(StrEnum):
    """Isolation between a model's program and this machine."""

    BUBBLEWRAP = "bubblewrap"
    """Namespaces, filters and limits; if they are not available, nothing is run."""
    DOCKER = "docker"
    """A container of Docker without network, with the same filters and limits."""
    PODMAN = "podman"
    """The same under Podman."""
    UNSAFE = "unsafe"
    """Limits and filters in an ordinary process: the program sees this machine's files. For trusted
    models only."""


class ContainerSandbox(Section):
    """Containers of an image of your own, which has `python3` and the packages of the programs."""

    docker: str | None = Field(default=None, min_length=1)
    """Image for Docker."""
    podman: str | None = Field(default=None, min_length=1)
    """Image for Podman."""

    @model_validator(mode="after")
    def _is_one(self) -> ContainerSandbox:
        if (self.docker is None) == (self.podman is None):
            raise ValueError("name one of docker and podman, with an image")
        return self


class RemoteSandbox(Section):
    """A server with SandboxFusion's API (`POST /run_code`), which isolates programs itself."""

    remote: str = Field(pattern=r"^https?://[^\s/]+")
    """Address of the server, `http://host:port`."""

    @field_validator("remote", mode="after")
    @classmethod
    def _has_no_end(cls, remote: str) -> str:
        return remote.rstrip("/").removesuffix("/run_code")


def _kind(choice: object) -> str:
    if isinstance(choice, RemoteSandbox) or (isinstance(choice, Mapping) and "remote" in choice):
        return "server"
    return "container" if isinstance(choice, ContainerSandbox | Mapping) else "name"


SandboxChoice: TypeAlias = Annotated[
    Annotated[SandboxMode, Tag("name")]
    | Annotated[ContainerSandbox, Tag("container")]
    | Annotated[RemoteSandbox, Tag("server")],
    # So that a wrong choice is said once, not once for each kind.
    Discriminator(_kind),
]


def container_of(choice: SandboxChoice) -> tuple[str, str] | None:
    """Return program and image of a container; None for other places."""
    if isinstance(choice, ContainerSandbox):
        if choice.docker is not None:
            return "docker", choice.docker
        return "podman", str(choice.podman)
    if choice in (SandboxMode.DOCKER, SandboxMode.PODMAN):
        return str(choice), IMAGE
    return None
