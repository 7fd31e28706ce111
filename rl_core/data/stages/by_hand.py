"""The body of the scripts that prepare one stage outside the command line of the project."""

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path

from rl_core.data.stages.run import load_stage, prepare_stage
from rl_core.errors import RLTrainError


def prepare_by_hand(stage: str, about: str, arguments: Sequence[str] | None = None) -> int:
    """Prepare a stage with `--input-dir`, `--output-dir` and dotted assignments.

    Args: about: text of `--help`. arguments: of the command line; unset means the process's own.
    Returns: the exit code: 0, or 2 after an error that was said on stderr.
    """
    parser = ArgumentParser(description=about, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--input-dir", type=Path, required=True, help="folder of the raw files")
    parser.add_argument("--output-dir", type=Path, required=True, help="folder of the cache")
    parser.add_argument("--force", action="store_true", help="build even if nothing changed")
    parser.add_argument("overrides", nargs="*", help="assignments such as on_invalid=drop")
    given = parser.parse_args(arguments)
    try:
        loaded = load_stage(
            stage, given.overrides, input_dir=given.input_dir, output_dir=given.output_dir
        )
        receipt = prepare_stage(loaded, force=given.force, note=lambda text: print(text))
    except RLTrainError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    counts = ", ".join(f"{name} {count}" for name, count in receipt.row_stats.items())
    print(f"{receipt.output}: {counts}")
    return 0
