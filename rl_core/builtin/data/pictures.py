r"""Drawn pictures and questions about them: shapes to count and name, numbers to read, bars to
compare.

Objects are placed on a grid of 4 x 4 cells, with small offsets and varying shades. Everything is
determined by the given random generator. An answer comes with the notes that lead to it.
"""

import io
import random
from collections import Counter
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL import ImageFont
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw as Pen

SIDE = 64
GRID = 4
CELL = SIDE // GRID
COLOURS = {
    "red": (205, 35, 35),
    "green": (35, 150, 60),
    "blue": (45, 75, 205),
    "yellow": (225, 200, 40),
    "purple": (140, 50, 160),
    "black": (30, 30, 30),
}
SHAPES = ("circle", "square", "triangle")
TALLEST = 2 * GRID
"""Height of the tallest bar in half cells."""


class Scene(StrEnum):
    """Content of a picture."""

    SHAPES = "shapes"
    """Two to six coloured shapes; asks how many have a colour or a shape, how many there are, and
    the colour of a single shape."""
    NUMBER = "number"
    """A number of one or two digits."""
    BARS = "bars"
    """Three or four coloured bars; asks for the height of one, and the colours of the tallest and
    the shortest."""


@dataclass(frozen=True)
class Question:
    """A question about a picture. `notes` is the reasoning that leads to the answer."""

    text: str
    answer: str
    notes: str


@dataclass(frozen=True)
class Picture:
    """A drawn picture, the content of each of its cells (row by row, "" for an empty cell), and
    questions about it.

    The lowest cell of a bar names its height: `red 6`; the cells above are `red bar`.
    """

    scene: Scene
    image: "Image"
    cells: tuple[str, ...]
    questions: tuple[Question, ...]

    @property
    def png(self) -> bytes:
        """The picture as a PNG file."""
        file = io.BytesIO()
        self.image.save(file, "PNG")
        return file.getvalue()


def draw(rng: random.Random, scene: Scene | None = None) -> Picture:
    """Draw a picture of 64 x 64 pixels.

    Args: scene: kind of scene; unset draws one at random.
    """
    from PIL import ImageDraw

    scene = scene or rng.choice(list(Scene))
    image = _canvas(rng)
    cells, questions = _SCENES[scene](ImageDraw.Draw(image), rng)
    return Picture(scene, image, tuple(cells), tuple(questions))


def draw_crowd(rng: random.Random) -> tuple["Image", tuple[str, ...]]:
    """Draw a picture crowded with shapes and digits, and return it with the content of its sixteen
    cells."""
    from PIL import ImageDraw

    image, cells, empty = _canvas(rng), [""] * GRID**2, rng.random()
    pen = ImageDraw.Draw(image)
    for place in range(GRID**2):
        if rng.random() < empty:
            continue
        if rng.random() < 0.5:
            colour, shape = rng.choice(list(COLOURS)), rng.choice(SHAPES)
            _shape(pen, rng, _corner(rng, place), colour, shape)
            cells[place] = f"{colour} {shape}"
        else:
            cells[place] = rng.choice("0123456789")
            _digit(pen, rng, _corner(rng, place), cells[place], _ink(rng))
    return image, tuple(cells)


def _canvas(rng: random.Random) -> "Image":
    from PIL import Image

    shade = rng.randrange(215, 246)
    return Image.new("RGB", (SIDE, SIDE), (shade, shade, shade + rng.randrange(-6, 7)))


def _shapes(pen: "Pen", rng: random.Random) -> tuple[list[str], list[Question]]:
    cells = [""] * GRID**2
    things: list[tuple[str, str]] = []
    places = sorted(rng.sample(range(GRID**2), rng.randint(2, 6)))
    # Few colours in a picture, so that a count is rarely one.
    colours = rng.sample(list(COLOURS), rng.randint(2, 4))
    for place in places:
        colour, shape = rng.choice(colours), rng.choice(SHAPES)
        things.append((colour, shape))
        cells[place] = f"{colour} {shape}"
        _shape(pen, rng, _corner(rng, place), colour, shape)
    colour, shape = rng.choice(things)[0], rng.choice(things)[1]
    hues, names = [hue for hue, _ in things], [name for _, name in things]
    counts = Counter(hues) + Counter(names)
    questions = [
        Question(f"How many shapes are {colour}?", str(counts[colour]), _tally(hues, {colour})),
        Question(f"How many {shape}s are there?", str(counts[shape]), _tally(names, {shape})),
        Question("How many shapes are there?", str(len(things)), _tally(names, set(SHAPES))),
    ]
    lone = [name for name in SHAPES if counts[name] == 1]
    if lone:
        asked = rng.choice(lone)
        hue = next(hue for hue, name in things if name == asked)
        notes = " ".join(f"{hue} {name}" for hue, name in things)
        questions.append(Question(f"What colour is the {asked}?", hue, notes))
    return cells, questions


def _tally(seen: Sequence[str], counted: Set[str]) -> str:
    """Return notes that name what was seen, with the running count after each that is counted."""
    notes, count = [], 0
    for name in seen:
        notes.append(name)
        if name in counted:
            count += 1
            notes.append(str(count))
    return " ".join(notes)


def _shape(
    pen: "Pen", rng: random.Random, corner: tuple[int, int], colour: str, shape: str
) -> None:
    left, top = corner
    size = rng.randint(9, 12)
    right, bottom = left + size, top + size
    fill = _tint(rng, colour)
    if shape == "circle":
        pen.ellipse([left, top, right, bottom], fill=fill)
    elif shape == "square":
        pen.rectangle([left, top, right, bottom], fill=fill)
    else:
        pen.polygon([(left, bottom), ((left + right) / 2, top), (right, bottom)], fill=fill)


def _number(pen: "Pen", rng: random.Random) -> tuple[list[str], list[Question]]:
    cells = [""] * GRID**2
    length = rng.randint(1, 2)
    digits = [rng.choice("123456789"), *(rng.choice("0123456789") for _ in range(length - 1))]
    row, first = rng.randrange(GRID), rng.randrange(GRID - length + 1)
    fill = _ink(rng)
    for step, digit in enumerate(digits):
        place = row * GRID + first + step
        _digit(pen, rng, _corner(rng, place), digit, fill)
        cells[place] = digit
    return cells, [Question("What number is written?", "".join(digits), " ".join(digits))]


def _digit(
    pen: "Pen",
    rng: random.Random,
    corner: tuple[int, int],
    digit: str,
    fill: tuple[int, ...],
) -> None:
    left, top = corner
    pen.text((left + 1, top - 3), digit, fill=fill, font=_font(rng.randint(14, 16)))


def _bars(pen: "Pen", rng: random.Random) -> tuple[list[str], list[Question]]:
    cells = [""] * GRID**2
    count = rng.randint(3, 4)
    columns = sorted(rng.sample(range(GRID), count))
    colours = rng.sample(list(COLOURS), count)
    heights = rng.sample(range(1, TALLEST + 1), count)
    for column, colour, height in zip(columns, colours, heights, strict=True):
        left = column * CELL + rng.randint(1, 4)
        pen.rectangle(
            [left, SIDE - height * CELL // 2, left + rng.randint(9, 11), SIDE],
            fill=_tint(rng, colour),
        )
        for level in range((height + 1) // 2):
            cells[(GRID - 1 - level) * GRID + column] = f"{colour} {'bar' if level else height}"
    bars = dict(zip(colours, heights, strict=True))
    notes = " ".join(f"{colour} {height}" for colour, height in bars.items())
    asked = rng.choice(colours)
    return cells, [
        Question(f"How tall is the {asked} bar?", str(bars[asked]), notes),
        Question("What colour is the tallest bar?", max(bars, key=lambda name: bars[name]), notes),
        Question("What colour is the shortest bar?", min(bars, key=lambda name: bars[name]), notes),
    ]


_SCENES: dict[Scene, Callable[["Pen", random.Random], tuple[list[str], list[Question]]]] = {
    Scene.SHAPES: _shapes,
    Scene.NUMBER: _number,
    Scene.BARS: _bars,
}


def _corner(rng: random.Random, place: int) -> tuple[int, int]:
    """Return the upper left corner of the object in a cell, a few pixels off the cell's own
    corner."""
    row, column = divmod(place, GRID)
    return column * CELL + rng.randint(1, 3), row * CELL + rng.randint(1, 3)


def _tint(rng: random.Random, colour: str) -> tuple[int, ...]:
    return tuple(max(0, min(255, part + rng.randint(-18, 18))) for part in COLOURS[colour])


def _ink(rng: random.Random) -> tuple[int, ...]:
    """Return a colour for digits; yellow ones would be hard to read."""
    return _tint(rng, rng.choice([name for name in COLOURS if name != "yellow"]))


@cache
def _font(size: int) -> "ImageFont.FreeTypeFont | ImageFont.ImageFont":
    from PIL import ImageFont

    return ImageFont.load_default(size)
