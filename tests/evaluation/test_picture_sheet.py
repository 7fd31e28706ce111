"""The sheet of sample pictures."""

import random
from pathlib import Path

from PIL import Image

from rl_core.builtin.data.pictures import Scene, draw
from rl_core.data.read.row_images import placed_images
from rl_core.evaluation.picture_sheet import HEIGHT, WIDTH, picture_sheet


def row(reward: float, **others: object) -> dict[str, object]:
    prompt = [{"role": "user", "content": "<image>\nHow tall is the red bar?"}]
    return {
        "prompt": prompt,
        "ground_truth": "3",
        "response": r"\boxed{3}",
        "reward": reward,
        **others,
    }


def test_a_sheet_shows_every_row_that_has_a_picture(tmp_path: Path):
    png = draw(random.Random(1), Scene.BARS).png
    (tmp_path / "bars.png").write_bytes(png)
    embedded = placed_images(
        [{"bytes": png}, {"path": "bars.png"}], tmp_path / "rows.jsonl", "row 1"
    )
    shown = [row(0.0, images=[image]) for image in embedded]
    assert picture_sheet([*shown, row(0.0)], [*shown, row(1.0)], tmp_path / "out" / "sheet.png")
    with Image.open(tmp_path / "out" / "sheet.png") as sheet:
        assert sheet.size == (2 * WIDTH, HEIGHT)
        left, right = sheet.crop((10, 10, 138, 138)), sheet.crop((WIDTH + 10, 10, WIDTH + 138, 138))
        assert left.tobytes() == right.tobytes(), "by bytes and by path it is the same picture"
        assert len(left.getcolors(2**16) or []) > 3


def test_without_pictures_there_is_no_sheet(tmp_path: Path):
    assert not picture_sheet([row(0.0)], [row(1.0)], tmp_path / "sheet.png")
    assert not (tmp_path / "sheet.png").exists()
