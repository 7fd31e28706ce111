"""Drawn pictures: what is asked about them is true, and the same seed draws the same."""

import random
from collections import Counter
from pathlib import Path

import pytest

from rl_core.builtin.data.picture_rows import PicturesSpec, materialise_pictures, planned_pictures
from rl_core.builtin.data.pictures import COLOURS, GRID, SHAPES, SIDE, Scene, draw, draw_crowd
from rl_core.data.order.vision_dataset import VisionDataset
from rl_core.data.prepare.prompt_items import ItemMaker
from rl_core.data.prepare.prompts import PreparationSettings, load_prepared, prepare_cache
from rl_core.data.read.row_images import open_image, placed_images
from rl_core.errors import DataError


@pytest.mark.parametrize("scene", list(Scene))
def test_the_same_seed_draws_the_same(scene: Scene):
    one, two, other = (draw(random.Random(seed), scene) for seed in (1, 1, 2))
    assert (one.png, one.questions, one.cells) == (two.png, two.questions, two.cells)
    assert one.png != other.png
    assert one.image.size == (SIDE, SIDE) and len(one.cells) == GRID**2


def test_answers_follow_from_what_stands_in_the_cells():
    for seed in range(40):
        shapes, number = (
            draw(random.Random(seed), Scene.SHAPES),
            draw(random.Random(seed), Scene.NUMBER),
        )
        things = [cell.split() for cell in shapes.cells if cell]
        for question in shapes.questions:
            last = question.text.rstrip("?").split()[-1]
            if last in COLOURS:
                assert question.answer == str(sum(colour == last for colour, _ in things))
            if question.text == "How many shapes are there?":
                assert question.answer == str(len(things))
            if question.text.startswith("What colour"):
                assert [question.answer] == [colour for colour, shape in things if shape == last]
        assert number.questions[0].answer == "".join(number.cells)


def test_bars_are_as_tall_as_the_answers_say():
    for seed in range(40):
        bars = draw(random.Random(seed), Scene.BARS)
        named = [cell.split() for cell in bars.cells if cell]
        heights = {colour: int(part) for colour, part in named if part != "bar"}
        cells = Counter(colour for colour, _ in named)
        assert cells == {colour: (height + 1) // 2 for colour, height in heights.items()}
        for question in bars.questions:
            if question.text.startswith("How tall"):
                assert question.answer == str(heights[question.text.split()[4]])
            else:
                pick = max if "tallest" in question.text else min
                assert question.answer == pick(heights, key=lambda colour: heights[colour])


def test_a_crowd_is_the_same_for_a_seed_and_holds_shapes_and_digits():
    (image, cells), (again, same) = draw_crowd(random.Random(3)), draw_crowd(random.Random(3))
    assert (image.tobytes(), cells) == (again.tobytes(), same)
    forms = {
        cell.split()[-1]
        for seed in range(20)
        for cell in draw_crowd(random.Random(seed))[1]
        if cell
    }
    assert {*SHAPES, *"0123456789"} == forms


def test_pictures_in_a_recipe_are_a_published_vision_cache_that_training_opens(
    tmp_path: Path, tiny_model_dir: Path
):
    spec = PicturesSpec(pictures=8, seed=3)
    parquet = materialise_pictures(spec, tmp_path / "made")
    assert (
        parquet
        == planned_pictures(spec, tmp_path / "made")
        == materialise_pictures(spec, tmp_path / "made")
    )
    assert len(VisionDataset(parquet.parent)) == 8
    held_out = materialise_pictures(PicturesSpec(pictures=4, seed=4), tmp_path / "made")
    receipt = prepare_cache(
        [parquet],
        [held_out],
        PreparationSettings(
            tokenizer_id="counting",
            max_prompt_length=512,
            name="pictures",
            cache_root=tmp_path / "cache",
            memo_dir=tmp_path / "memo",
            default_env_class="geo3k",
            allowed_env_classes={"geo3k": frozenset({"string"})},
        ),
        tokenizer=Counting(),
    )
    items = load_prepared(Path(receipt.path) / "train.parquet")
    assert len(items) == 8 and receipt.num_eval_rows == 4
    for item, row in zip(items, VisionDataset(parquet.parent), strict=True):
        (image,) = item["env_extras"]["images"]
        assert open_image(image).size == (SIDE, SIDE)
        assert Path(image) == parquet.parent / str(row.image)
        assert item["env_extras"]["reward_spec"]["ground_truth"] == row.answer


class Counting:
    """Stands where a processor would count."""

    def __call__(self, text: str, **_: object) -> dict[str, list[int]]:
        return {"input_ids": []}

    def apply_chat_template(self, *_: object, **__: object) -> str:
        raise AssertionError("prompts with pictures are counted by count_items")

    def get_vocab(self) -> dict[str, int]:
        return {}

    chat_template = ""

    def count_items(self, items: list, template_kwargs: dict) -> list[int]:
        return [17 * len(item["env_extras"]["images"]) for item in items]


def test_an_image_in_the_row_travels_as_text_and_identical_questions_differ_by_their_image(
    tmp_path: Path,
):
    pngs = [draw(random.Random(seed), Scene.NUMBER).png for seed in (1, 2)]
    message = [{"role": "user", "content": "What number is written?"}]
    rows = [
        {
            "prompt": message,
            "env_class": "geo3k",
            "reward_spec": {"ground_truth": "1"},
            "images": [{"bytes": png}],
        }
        for png in pngs
    ]
    make = ItemMaker()
    one, two = (make(row, "rows:1", tmp_path / "rows.parquet") for row in rows)
    assert one["uid"][:16] != two["uid"][:16]
    assert open_image(one["env_extras"]["images"][0]).size == (SIDE, SIDE)


@pytest.mark.parametrize("image", [{"path": "gone.png"}, {"path": ""}, {}, 3], ids=str)
def test_an_image_that_is_not_there_names_its_row(image: object, tmp_path: Path):
    with pytest.raises(DataError, match=r"rows:7 field images\[0\]: "):
        placed_images([image], tmp_path / "rows.jsonl", "rows:7")
