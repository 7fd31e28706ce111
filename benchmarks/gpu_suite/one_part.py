"""One part of the GPU suite in a process of its own.

python -m benchmarks.gpu_suite.one_part NAME --out FOLDER --scratch FOLDER --seconds S [--dry]
"""

from __future__ import annotations

import argparse
import importlib
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.gpu_suite.notebook import Notebook, Status
from benchmarks.gpu_suite.parts import part_named


@dataclass(frozen=True)
class Place:
    """Conditions under which a part runs."""

    scratch: Path
    """Folder for models, which the parts share and the suite removes."""
    is_dry: bool
    seconds: float
    """Time from the beginning of the part to its end by force."""
    began: float = field(default_factory=time.monotonic)

    @property
    def device(self) -> str:
        return "cpu" if self.is_dry else "cuda"

    def left(self) -> float:
        """Return the seconds until the part is ended by force."""
        return self.seconds - (time.monotonic() - self.began)


def main() -> None:
    """Run the part that the command line names, and say in its file how it ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--dry", action="store_true")
    args = parser.parse_args()
    notebook = Notebook(args.out, part_named(args.name), args.dry)
    place = Place(args.scratch, args.dry, args.seconds)
    try:
        run_part(notebook, place)
    except ImportError as error:
        notebook.end(Status.SKIPPED, f"not installed here: {error}")
    except Exception as error:
        traceback.print_exc()
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        notebook.end(Status.FAILED, f"{where}: {type(error).__name__}: {error}"[:1000])


def run_part(notebook: Notebook, place: Place) -> None:
    """Run a part to its end."""
    import torch

    if not place.is_dry and not torch.cuda.is_available():
        notebook.end(Status.SKIPPED, "torch.cuda.is_available() says there is no GPU")
        return
    module = importlib.import_module(f"benchmarks.gpu_suite.{notebook.part.name}")
    module.run(notebook, place)
    if notebook.status is Status.RUNNING:
        notebook.end(Status.DONE)


if __name__ == "__main__":
    main()
