"""The commands `rl-train rollouts` and `rescore`, which read what a run's steps sampled."""

import json
from math import fsum, isnan
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands.reports import RUN
from rl_core.runs.rollouts.reading import Order, Row, Wanted, messages_of, select
from rl_core.runtime.home import Home

if TYPE_CHECKING:
    from rl_core.runs.rollouts.rescoring import Rescored

LONGEST = 1200
"""Characters of a message that are printed without `--full`."""
SNIPPET = 48
"""Characters of a reply in the table."""


def rollouts(
    run: Annotated[str, typer.Argument(help=RUN)],
    step: Annotated[int | None, typer.Option(help="Only this step")] = None,
    track: Annotated[str | None, typer.Option(help="Only this track, such as text")] = None,
    group: Annotated[
        str | None, typer.Option(help="Only this group_id, or this prompt's uid in every step")
    ] = None,
    grep: Annotated[
        str | None, typer.Option(help="Only rows whose prompt, reply or ground truth has this text")
    ] = None,
    sort: Annotated[Order, typer.Option(help="Order of the rows")] = Order.STEP,
    limit: Annotated[int, typer.Option(min=1, help="Rows that are printed")] = 10,
    full: Annotated[bool, typer.Option("--full", help="Print long messages whole")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print every column, one JSON object a line")
    ] = False,
) -> None:
    """Show what a run sampled: conversations, rewards, advantages and log-probabilities."""
    from rl_core.reporting.run_record import find_run

    record = find_run(Home.default(), run)
    rows = select(record.folder.rollouts, Wanted(step, track, group, grep), sort, limit)
    if as_json:
        for row in rows:
            typer.echo(json.dumps(row, ensure_ascii=False))
        return
    _print(record.name, rows, full)


def _print(run: str, rows: list[Row], full: bool) -> None:
    from flows.console import Console, Table

    console = Console()
    if not rows:
        console.say("no stored row is like this")
        return
    shown = Table(f"{len(rows)} rollouts of {run}")
    for name in ("#", "step", "reward", "advantage", "|Δlogp|", "tokens"):
        shown.column(name, justify="right")
    shown.column("end")
    shown.column("reply")
    for number, row in enumerate(rows, 1):
        numbers = (_number(row[key]) for key in ("reward", "advantage", "delta_log_prob"))
        reply = " ".join((row["response"] or "").split())[:SNIPPET]
        shown.row(
            *(str(number), str(row["step"]), *numbers, str(row["num_tokens"])),
            *(row["stop_reason"] or "", reply),
        )
    console.print(shown)
    for number, row in enumerate(rows, 1):
        console.rule(f"{number}: step {row['step']}", align="left", characters="-")
        for line in _facts(row):
            console.say(line)
        for message in messages_of(row):
            reward = message.get("reward")
            earned = f" (reward {_number(reward)})" if reward else ""
            console.say(f"{message['role']}{earned}: {_shortened(message['content'], full)}")


def _facts(row: Row) -> list[str]:
    """Return what is known of a row besides its conversation."""
    parts = {**row["reward_parts"], **{f"score {key}": one for key, one in row["scores"].items()}}
    facts = {
        "sample": row["sample_id"],
        "environment": row["env_class"],
        "data source": row["data_source"],
        "ground truth": None if row["ground_truth"] == "null" else row["ground_truth"],
        "read": row["env_read"],
        **{f"verdict {key}": text for key, text in (row.get("verdicts") or {}).items()},
        "parts": ", ".join(f"{key} {_number(one)}" for key, one in parts.items()),
        "environment metrics": ", ".join(
            f"{key} {_number(one)}" for key, one in row["env_metrics"].items()
        ),
        "pictures": ", ".join(row["pictures"]),
        "made": row["made"],
        "error": row["error"],
        "not trained": None if row["trained"] else "sampled, and left out of the training",
    }
    return [f"{name}: {value}" for name, value in facts.items() if value]


def _number(value: object) -> str:
    return "" if value is None else f"{value:.4g}"


def _shortened(text: str, full: bool) -> str:
    if full or len(text) <= LONGEST:
        return text
    return f"{text[:LONGEST]}... ({len(text)} characters; --full prints all)"


def rescore(
    run: Annotated[str, typer.Argument(help=RUN)],
    recipe: Annotated[
        str, typer.Option(help="Recipe whose environments, rewards and shaping are used")
    ],
    step: Annotated[int | None, typer.Option(help="Only this step")] = None,
    limit: Annotated[int, typer.Option(min=0, help="Rows that are printed")] = 20,
) -> None:
    """Compute the rewards of stored rollouts anew, without sampling; old and new go into a Parquet
    file beside the run's rollouts."""
    from rl_core.reporting.run_record import find_run
    from rl_core.runs.recipes import load_recipe
    from rl_core.runs.rollouts.rescoring import rescore as rescored
    from rl_core.runs.rollouts.rescoring import write_rescored

    record, new = find_run(Home.default(), run), load_recipe(recipe)
    found = list(rescored(record.folder, record.recipe, new, step))
    part = "" if step is None else f"-step-{step:05d}"
    path = record.folder.rollouts / f"rescored-{new.name}{part}.parquet"
    write_rescored(found, path)
    _print_rescored(found, limit)
    typer.echo(path)


def _print_rescored(found: "list[Rescored]", limit: int) -> None:
    from flows.console import Console, Table

    console = Console()
    counted = [one for one in found if not isnan(one.new)]
    order = sorted(found, key=lambda one: (not isnan(one.new), -abs(one.new - one.old)))
    shown = Table("Rewards, the largest changes first")
    shown.column("step", justify="right")
    shown.column("sample")
    for name in ("old", "new", "change"):
        shown.column(name, justify="right")
    shown.column("parts, or why there is none")
    for one in order[:limit]:
        parts = ", ".join(f"{key} {value:.4g}" for key, value in one.parts.items())
        numbers = _number(one.old), _number(one.new), f"{one.new - one.old:+.4g}"
        shown.row(str(one.step), one.sample_id, *numbers, one.error or parts)
    console.print(shown)
    changed = sum(one.changed for one in counted)
    said = f"{len(found)} rows, {changed} with another reward, {len(found) - len(counted)} without"
    if counted:
        old, new = (fsum(values) / len(counted) for values in _columns(counted))
        said += f"; mean {old:.4g} before, {new:.4g} now"
    console.say(said)


def _columns(found: "list[Rescored]") -> tuple[list[float], list[float]]:
    return [one.old for one in found], [one.new for one in found]
