"""`rl-train validate` and the group `rl-train data`: what a person does with row files before any run."""

from pathlib import Path
from typing import Annotated

import typer

from rl_core.home import Home

data = typer.Typer(help="Make and convert row files.", no_args_is_help=True)


def validate(
    paths: Annotated[list[Path], typer.Argument(help="Prompt files: .parquet .jsonl .json .txt")],
    env_class: Annotated[str | None, typer.Option(help="Environment of rows that name none")] = None,
) -> None:
    """Check prompt files against the schema; every bad row is named, and the exit code is 2 when there is one."""
    from rl_core.data.validate import validate_files
    from rl_core.envs import accepted_ground_truths

    home = Home.default()
    report = validate_files(
        paths,
        allowed_env_classes=accepted_ground_truths(),
        default_env_class=env_class,
        rejects_dir=home.data / "rejects" / "cli",
        memo_dir=home.data / "memo",
        policy="fail",
        max_bad_fraction=0.0,
    )
    typer.echo(f"{report.num_accepted} of {report.num_rows} rows are good; {report.explanation}")
