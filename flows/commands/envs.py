"""The group `rl-train envs`: which environments there are, and one row of one, played by hand or by
a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rl_core.rollout.agents.trying import Speak
    from schemas.recipe import Recipe

envs = typer.Typer(help="List and try environments.", no_args_is_help=True)

NO_VERDICT = 1
"""Exit code of a row that was played without a verdict."""


@envs.command("list")
def list_environments(
    recipe: Annotated[
        str | None, typer.Option(help="Also those that this recipe names, with their settings")
    ] = None,
) -> None:
    """List the environments that a row may name, each with what it does."""
    from rl_core.envs.registration import AGENT_CLASSES, registered, spec
    from rl_core.runs.recipes import load_recipe

    shown = {name: _sentence(spec(name).load()) for name in registered()}
    keys = {f"{{{key}: …}}": _sentence(_agent_class(path)) for key, path in AGENT_CLASSES.items()}
    own: dict[str, str] = {}
    if recipe is not None:
        for name, options in load_recipe(recipe).environments.items():
            settings = ", ".join(f"{key}: {value}" for key, value in options.items())
            own[name] = f"{_sentence(spec(name, options).load())} ({settings})"
    width = max(len(name) for name in (*shown, *keys, *own))
    for title, group in (
        ("built in", shown),
        ("programs, and environments of other packages", keys),
        (f"of {recipe}", own),
    ):
        if group:
            typer.echo(f"{title}:")
        for name, sentence in group.items():
            typer.echo(f"  {name:<{width}}  {sentence}")


@envs.command("try")
def try_environment(
    name: Annotated[str, typer.Argument(help="Environment, as rows name it in env_class")],
    recipe: Annotated[
        str, typer.Option(help="Recipe with the environment's settings and rows")
    ] = "text",
    row: Annotated[int, typer.Option(min=0, help="Number of the row among those of NAME")] = 0,
    rows: Annotated[
        str | None, typer.Option(help="File of rows to take instead of the recipe's")
    ] = None,
    reply: Annotated[
        list[str] | None, typer.Option(help="What to reply, once for each turn; unset: typed")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Model that replies: as for `rl-train serve`, or http://host:port/v1"),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest reply of the model")] = 256,
) -> None:
    """Play one row of an environment, by hand or with a model, and print what is said and earned.

    Typed replies are a line each; \\n in one begins another line.
    """
    from rl_core.rollout.agents.trying import try_row
    from rl_core.runs.recipes import load_recipe

    if model is not None and reply:
        raise typer.BadParameter("give --reply or --model, not both")
    loaded = load_recipe(recipe)
    found = _row(loaded, name, row, rows)
    options = loaded.environments.get(name, {})
    with ExitStack() as stack:
        speak = (
            _typed(reply or [])
            if model is None
            else stack.enter_context(_spoken(model, recipe, max_tokens))
        )
        tried = try_row(name, options, found, speak, _show)
    for key, value in tried.metrics.items():
        typer.echo(f"{key}: {value:g}" if isinstance(value, float) else f"{key}: {value}")
    if tried.error is not None:
        typer.echo(f"no verdict: {tried.error}", err=True)
        raise typer.Exit(NO_VERDICT)
    typer.echo(f"reward: {tried.reward:g}")


def _agent_class(path: str) -> type:
    from rl_core.runtime.registry import import_target

    return import_target(path)


def _sentence(cls: type) -> str:
    """Return the first sentence of a class's docstring."""
    text = " ".join((cls.__doc__ or "").split())
    return text.partition(". ")[0].rstrip(".") + "."


def _row(recipe: Recipe, name: str, number: int, rows: str | None) -> dict[str, Any]:
    """Return a row that the environment plays. Raises: DataError when there is no such row."""
    from rl_core.data import read_rows
    from rl_core.data.prepare.row_files import row_files
    from rl_core.data.read.row_images import placed_images
    from rl_core.data.read.sources import data_files
    from rl_core.errors import DataError
    from rl_core.runtime.home import Home
    from schemas.rows.problems import as_list

    train, held_out = row_files(recipe, Home.default()) if rows is None else (data_files(rows), [])
    default, num_rows, names = recipe.data.default_env_class, 0, set[str]()
    for file in (*train, *held_out):
        for _, row in read_rows(file):
            played_by = row.get("env_class") or default or (name if rows is not None else None)
            names.add(str(played_by))
            if played_by != name:
                continue
            if num_rows == number:
                images = as_list(row.get("images"))
                place = f"row {number} of {name}"
                return row | ({"images": placed_images(images, file, place)} if images else {})
            num_rows += 1
    if not num_rows:
        others = f"; they name {', '.join(sorted(names))}" if names else ""
        raise DataError(
            f"{rows or recipe.name} has no row of the environment {name!r}{others}; name a recipe "
            "or a file with such rows: --recipe, --rows"
        )
    raise DataError(f"--row {number}: there are {num_rows} rows of {name!r}, numbered from 0")


def _typed(replies: list[str]) -> Speak:
    """Return a speaker that says given replies, and then asks for more where none were given."""
    from rl_core.errors import EnvError

    left = iter(replies)

    def speak(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> dict[str, Any]:
        if tools:
            typer.echo(f"[tools: {', '.join(one['function']['name'] for one in tools)}]")
        said = next(left, None)
        if said is None and replies:
            raise EnvError(
                f"the conversation goes on after {len(replies)} replies; give --reply once more"
            )
        said = typer.prompt("reply") if said is None else said
        return {"role": "assistant", "content": said.replace("\\n", "\n")}

    return speak


@contextmanager
def _spoken(model: str, recipe: str, max_tokens: int) -> Iterator[Speak]:
    """Yield a speaker that asks a model: one behind an address, or one that is loaded here."""
    import os

    import openai

    from rl_core.errors import EnvError, ServiceError
    from rl_core.rollout.agents.endpoint import listening
    from rl_core.runs.versions.served_weights import find_served
    from rl_core.runtime.home import Home
    from rl_core.serving.app import build_app
    from rl_core.serving.loading import load_endpoint

    with ExitStack() as stack:
        if "://" in model:
            key = os.environ.get("OPENAI_API_KEY") or "none"
            client = stack.enter_context(openai.OpenAI(base_url=model, api_key=key))
            try:
                named = next(iter(client.models.list())).id
            except (openai.OpenAIError, StopIteration) as error:
                raise ServiceError(
                    f"--model {model}: no model answers there ({_line(error)}); give the address "
                    "of an OpenAI-compatible API, such as http://127.0.0.1:8000/v1"
                ) from error
        else:
            found = find_served(model, recipe, Home.default())
            endpoint = load_endpoint(found.source, found.config, "cpu", name="model")
            url = stack.enter_context(listening(build_app(endpoint)))
            client = stack.enter_context(openai.OpenAI(base_url=url, api_key="none"))
            named = "model"

        def speak(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> dict[str, Any]:
            offered: dict[str, Any] = {"tools": tools} if tools else {}
            try:
                answered = client.chat.completions.create(
                    model=named,
                    messages=messages,  # type: ignore[arg-type]
                    max_tokens=max_tokens,
                    **offered,
                )
            except openai.OpenAIError as error:
                raise EnvError(f"the model gave no reply: {_line(error)}") from error
            return answered.choices[0].message.model_dump(exclude_none=True)

        yield speak


def _line(error: Exception) -> str:
    """Return what a server or its client said, in one line."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def _said(part: object) -> str:
    """Return what a part of a message says; a picture is named, not printed."""
    if isinstance(part, dict):
        return str(part["text"]) if part.get("type") == "text" else f"[{part.get('type')}]"
    return str(part)


def _show(message: dict[str, Any]) -> None:
    content = message.get("content")
    parts = [content] if isinstance(content, str) else content or []
    text = "".join(_said(part) for part in parts)
    calls = [one["function"] for one in message.get("tool_calls") or ()]
    called = [f"{one['name']}({one['arguments']})" for one in calls]
    typer.echo(f"{message['role']}: {chr(10).join([text, *called]).strip()}")
