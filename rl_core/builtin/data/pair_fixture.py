"""Generated pairs of answers, so that preference training can be tried without a download.

`text` describes a row of coloured things and asks for the colour, the neighbour or the number of
some: the rejected answer is true of another thing in the scene, so it cannot be told by its form.
`courtesy` are replies to customers (`courteous_replies`).
`mpo` is the fixture of the stage `mpo`, drawn, written in MMPR's format and prepared like the real
dataset.
"""

import hashlib
import json
import random
from collections.abc import Mapping
from pathlib import Path

from rl_core.builtin.data.courteous_replies import courteous_replies
from rl_core.data.store.atomic import atomic_writer
from rl_core.errors import DataError
from schemas.sections.preference import PairFixture, PairSource

_VERSION = "1"
COLOURS = ("red", "green", "blue", "yellow", "white", "black", "brown", "purple")
THINGS = (
    "ball",
    "box",
    "cup",
    "hat",
    "book",
    "lamp",
    "key",
    "chair",
    "shoe",
    "plate",
    "coat",
    "bag",
)
NUM_THINGS = 3
_TRIES_PER_ROW = 50


def planned_fixture(source: PairSource, folder: Path | str) -> Path:
    """Return the path at which `make_pairs` writes the pairs of a `fixture` source: a file of rows,
    or a published cache."""
    values = {
        "version": _VERSION,
        **source.model_dump(include={"fixture", "num_rows", "seed"}, mode="json"),
    }
    root = Path(folder).expanduser() / f"pairs-{source.fixture}-{text_digest(values)}"
    if source.fixture is PairFixture.MPO:
        return root / "prepared" / "MMPR-v1.2"
    return root / "pairs.jsonl"


def make_pairs(source: PairSource, folder: Path | str) -> Path:
    """Generate the pairs of a `fixture` source on first use, and return their path. Raises:
    DataError, StorageError."""
    target = planned_fixture(source, folder)
    if source.fixture is PairFixture.MPO:
        _prepare_drawn(target.parent.parent, source)
    elif not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_writer(target) as file:
            for row in generated_rows(source.fixture, source.num_rows, source.seed):
                file.write(json.dumps(row) + "\n")
    return target


def text_digest(values: Mapping[str, object]) -> str:
    """Return the digest of settings in the name of a generated file."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]


def generated_rows(fixture: PairFixture | None, num_rows: int, seed: int) -> list[dict[str, str]]:
    """Generate the rows of a fixture of texts, each question once. Raises: DataError when there are
    too few."""
    make = courteous_replies if fixture is PairFixture.COURTESY else described_scenes
    return make(num_rows, seed)


def described_scenes(num_rows: int, seed: int) -> list[dict[str, str]]:
    """Generate rows with `question`, `chosen` and `rejected`, each question once. Raises: DataError
    when there are too few."""
    rng, rows = random.Random(f"described scenes {seed}"), dict[str, dict[str, str]]()
    for _ in range(_TRIES_PER_ROW * num_rows):
        row = _described_scene(rng)
        rows.setdefault(row["question"], row)
        if len(rows) == num_rows:
            return list(rows.values())
    raise DataError(
        f"fixture text: num_rows {num_rows} is more than the {len(rows)} different scenes there are"
    )


def _described_scene(rng: random.Random) -> dict[str, str]:
    things, colours = rng.sample(THINGS, NUM_THINGS), rng.sample(COLOURS, NUM_THINGS)
    scene = []
    for colour, thing in zip(colours, things, strict=True):
        scene.append(f"a {colour} {thing}")
    told = f"From left to right there are {', '.join(scene[:-1])} and {scene[-1]}."
    asked, other = rng.sample(range(NUM_THINGS), 2)
    question, right, wrong = rng.choice(
        [
            (
                f"What colour is the {things[asked]}?",
                f"It is {colours[asked]}.",
                f"It is {colours[other]}.",
            ),
            (
                f"What is {colours[asked]}?",
                f"It is the {things[asked]}.",
                f"It is the {things[other]}.",
            ),
            (
                f"What stands {('first', 'in the middle', 'last')[asked]}?",
                f"It is the {things[asked]}.",
                f"It is the {things[other]}.",
            ),
        ]
    )
    return {"question": f"{told} {question}", "chosen": right, "rejected": wrong}


def _prepare_drawn(root: Path, source: PairSource) -> None:
    from filelock import FileLock

    from rl_core.builtin.data.make_fixture import make_fixture
    from rl_core.data.stages.run import load_stage, prepare_stage

    root.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{root}.lock"):
        raw: dict[str, Path] = {"mpo": root / "fixture" / "mpo" / "raw"}
        if not root.is_dir():
            raw = make_fixture(root / "fixture", num_rows=source.num_rows, seed=source.seed)
        prepare_stage(load_stage("mpo", input_dir=raw["mpo"], output_dir=root / "prepared"))
