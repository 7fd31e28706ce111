"""Small synthetic inputs in the format of each upstream dataset, so that every stage can be tried
without a download.

Pictures are drawn, with questions about their content. The same seed gives the same bytes on every
run, archives included.
"""

import io
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rl_core.builtin.data.picture_rows import write_mmpr_tiny, write_zip
from rl_core.data.store.atomic import atomic_write_text, storage_error
from rl_core.errors import DataError
from rl_core.runtime.user_paths import user_path

COLOURS = {
    "red": (200, 30, 30),
    "green": (30, 160, 60),
    "blue": (40, 70, 200),
    "yellow": (220, 200, 40),
}
SHAPES = ("circle", "square", "triangle")
TABLE = ("nano_v3_sft_profiled_dapo17k", "BytedTsinghua-SIA/DAPO-Math-17k")
"""Name of the table that placeholder rows refer to, as in the shipped settings, and its folder."""


@dataclass(frozen=True)
class Picture:
    """A drawn picture, and the shape and colour in it."""

    colour: str
    shape: str
    png: bytes


def make_fixture(folder: Path | str, *, num_rows: int = 24, seed: int = 0) -> dict[str, Path]:
    """Write `vision/`, `mpo/`, `text/` and `diffusion/` below `folder`, each the raw input of its
    stage.

    Args: num_rows: rows of each dataset. Returns: the raw folder of each stage. Raises: DataError
    when `folder` is not empty; StorageError.
    """
    root = user_path(folder)
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise DataError(f"{root} is not empty; name a new folder")
    if num_rows < 4:
        raise DataError(f"num_rows {num_rows}: expected at least 4")
    makers: dict[str, Callable[[Path, int, random.Random], None]] = {
        "vision": _vision,
        "mpo": _mpo,
        "text": _text,
        "diffusion": _diffusion,
    }
    made = {}
    try:
        for name, make in makers.items():
            made[name] = root / name / "raw"
            made[name].mkdir(parents=True)
            make(made[name], num_rows, random.Random(f"{seed} {name}"))
    except OSError as error:
        raise storage_error(error.filename or root, error) from error
    return made


def draw(rng: random.Random, side: int = 48) -> Picture:
    """Draw one coloured shape at a random place on a grey background."""
    from PIL import Image, ImageDraw

    colour, shape = rng.choice(list(COLOURS)), rng.choice(SHAPES)
    image = Image.new("RGB", (side, side), (230, 230, 230))
    pen, size = ImageDraw.Draw(image), rng.randrange(side // 3, side // 2)
    left, top = rng.randrange(side - size), rng.randrange(side - size)
    box = [left, top, left + size, top + size]
    if shape == "circle":
        pen.ellipse(box, fill=COLOURS[colour])
    elif shape == "square":
        pen.rectangle(box, fill=COLOURS[colour])
    else:
        pen.polygon(
            [(left, box[3]), (left + size / 2, top), (box[2], box[3])], fill=COLOURS[colour]
        )
    file = io.BytesIO()
    image.save(file, "PNG")
    return Picture(colour, shape, file.getvalue())


def _vision(folder: Path, num_rows: int, rng: random.Random) -> None:
    """Write a dataset like MMPR-Tiny: `mmpr_tiny.parquet` and `images.zip`."""
    write_mmpr_tiny(folder, num_rows, rng)


def _mpo(folder: Path, num_rows: int, rng: random.Random) -> None:
    """Write a dataset like MMPR-v1.2: `meta.json`, `annotations.zip`, and images in two
    archives."""
    meta, annotations, archives = {}, {}, {"images.zip": {}, "images_more.zip": {}}
    for part, (subset, archive) in enumerate(zip(("colours", "shapes"), archives, strict=True)):
        lines = []
        count = num_rows // 2 + part * (num_rows % 2)
        for index in range(count):
            picture, asks = draw(rng), "colour" if subset == "colours" else "shape"
            good = picture.colour if asks == "colour" else picture.shape
            bad = rng.choice(
                [word for word in (COLOURS if asks == "colour" else SHAPES) if word != good]
            )
            name = f"{index:05d}.png"
            archives[archive][f"images/{subset}/{name}"] = picture.png
            row = {
                "image": [name] if index % 5 == 4 else name,
                "question": f"What {asks} is in the picture?",
                "chosen": f"It is {good}.",
                "rejected": f"It is {bad}.",
            }
            lines.append(json.dumps(row))
        annotations[f"annotations/{subset}/pairs.jsonl"] = ("\n".join(lines) + "\n").encode()
        meta[subset] = {
            "root": f"MMPR/images/{subset}",
            "annotation": f"/mnt/petrelfs/share/MMPR/annotations/{subset}/pairs.jsonl",
            "data_augment": False,
            "repeat_time": 1,
            "length": count,
        }
    for archive, members in archives.items():
        write_zip(folder / archive, members)
    write_zip(folder / "annotations.zip", annotations)
    _json(folder / "meta.json", meta)


def _text(folder: Path, num_rows: int, rng: random.Random) -> None:
    """Write a text-RL blend: complete rows, placeholder rows, and the table whose rows the
    placeholders name."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    whole, pointing, table = [], [], []
    for index in range(num_rows):
        a, b = rng.randrange(100), rng.randrange(100)
        question = f"What is {a} + {b}?"
        if index % 2 == 0:
            whole.append(
                {
                    "id": index,
                    "responses_create_params": {"input": [{"role": "user", "content": question}]},
                    "expected_answer": str(a + b),
                    "agent_ref": {"type": "responses_api_agents", "name": "math_agent"},
                    "dataset": "sums",
                }
            )
            continue
        template: object = {"prefix": "Solve this: ", "suffix": "\nAnswer with a number."}
        template = template if index % 4 == 1 else "{question} Give the number alone."
        pointer = {"row": len(table), "question_template": template}
        pointing.append(
            {"id": index, "dataset": TABLE[0], "_hf_placeholder": pointer, "pass_rate": 0.5}
        )
        answer = {"ground_truth": str(a + b), "style": "rule"}
        table.append({"prompt": [{"content": question, "role": "user"}], "reward_model": answer})
    for name, rows in (("sums.jsonl", whole), ("pointing.jsonl", pointing)):
        atomic_write_text(folder / name, "".join(json.dumps(row) + "\n" for row in rows))
    (folder / TABLE[1]).mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(table), folder / TABLE[1] / "train.parquet")
    entries = [
        {"name": name, "path": f"{name}.jsonl", "weight": 1.0} for name in ("sums", "pointing")
    ]
    _json(folder / "data_blend_raw.json", {"datasets": entries})


def _diffusion(folder: Path, num_rows: int, rng: random.Random) -> None:
    """Write a UniRL prompt file; every second prompt has a condition image."""
    (folder / "frames").mkdir()
    rows = []
    for index in range(num_rows):
        picture = draw(rng, side=96)
        row: dict[str, object] = {
            "prompt": f"A {picture.colour} {picture.shape} on grey.",
            "topic": picture.shape,
        }
        if index % 2:
            name = f"frames/scene_{index:02d}.png"
            (folder / name).write_bytes(picture.png)
            row["prompt"] = f"Let the {picture.shape} move slowly to the left."
            row["media_refs"] = [{"modality": "image", "role": "condition", "uri": name}]
        rows.append(row)
    atomic_write_text(folder / "prompts.jsonl", "".join(json.dumps(row) + "\n" for row in rows))


def _json(path: Path, value: object) -> None:
    atomic_write_text(path, json.dumps(value, indent=2) + "\n")
