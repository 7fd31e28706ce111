"""Drawn pictures as a dataset in MMPR-Tiny's format, prepared like the real one.

`{pictures: 2000, seed: 1}` in a recipe's data stands for such rows: they are drawn on first use,
prepared by the stage `vision`, and then reused. Another seed gives other pictures, so held-out rows
are another entry.
"""

import hashlib
import json
import random
import shutil
import zipfile
from pathlib import Path

from pydantic import Field

from rl_core.builtin.data.pictures import Scene, draw
from rl_core.data.order.vision_dataset import PARQUET
from schemas.sections.section import Section

_VERSION = "1"
ARCHIVE = "images.zip"
ARCHIVE_TIME = (2020, 1, 1, 0, 0, 0)


class PicturesSpec(Section):
    """Number, seed and content of pictures to draw."""

    pictures: int = Field(ge=4)
    """Number of rows, each with its own picture and one question about it."""
    seed: int = 0
    """Seed of the pictures; different seeds give different pictures."""
    scenes: tuple[Scene, ...] = tuple(Scene)
    """Kinds of scenes, drawn with equal probability."""


def planned_pictures(spec: PicturesSpec, folder: Path | str) -> Path:
    """Return the Parquet file of the prepared cache that `materialise_pictures` makes, without
    drawing anything."""
    values = json.dumps({"version": _VERSION, **spec.model_dump(mode="json")}, sort_keys=True)
    digest = hashlib.sha256(values.encode()).hexdigest()[:12]
    return Path(folder).expanduser() / f"pictures-{digest}" / "prepared" / PARQUET


def materialise_pictures(spec: PicturesSpec, folder: Path | str) -> Path:
    """Draw and prepare the pictures once; return the Parquet file of the published `vision` cache.
    Raises: DataError, StorageError."""
    from filelock import FileLock

    from rl_core.data.stages.run import load_stage, prepare_stage

    path = planned_pictures(spec, folder)
    root = path.parent.parent
    root.mkdir(parents=True, exist_ok=True)
    with FileLock(root / ".lock"):
        if not path.is_file():
            shutil.rmtree(root / "raw", ignore_errors=True)
            (root / "raw").mkdir()
            write_mmpr_tiny(
                root / "raw", spec.pictures, random.Random(f"pictures {spec.seed}"), spec.scenes
            )
            prepare_stage(
                load_stage(
                    "vision", ["source_uri=null"], input_dir=root / "raw", output_dir=path.parent
                )
            )
    return path


def write_mmpr_tiny(
    folder: Path, num_rows: int, rng: random.Random, scenes: tuple[Scene, ...] = tuple(Scene)
) -> None:
    """Write `mmpr_tiny.parquet` and `images.zip`; images are named by their content."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows: list[dict[str, object]] = []
    images: dict[str, bytes] = {}
    while len(rows) < num_rows:
        picture = draw(rng, rng.choice(scenes))
        question, png = rng.choice(picture.questions), picture.png
        name = f"images/{picture.scene}/{hashlib.sha256(png).hexdigest()[:16]}.png"
        if name in images:
            continue
        images[name] = png
        rows.append(
            {
                "data_source": picture.scene.value,
                "prompt": [{"content": f"<image>\n{question.text}", "role": "user"}],
                "images": [{"bytes": None, "path": name}],
                "ability": "perception",
                "reward_model": {"ground_truth": question.answer, "style": "rule"},
                "extra_info": {
                    "answer": question.answer,
                    "index": len(rows),
                    "question": question.text,
                    "split": "train",
                },
            }
        )
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.Table.from_pylist(rows)
    table = table.set_column(
        2, "images", pa.array([row["images"] for row in rows], pa.list_(image))
    )
    pq.write_table(table, folder / PARQUET, row_group_size=max(2, num_rows // 2))
    write_zip(folder / ARCHIVE, images)


def write_zip(path: Path, members: dict[str, bytes]) -> None:
    """Write an archive whose bytes depend on its members alone."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name, ARCHIVE_TIME), content, zipfile.ZIP_DEFLATED)
