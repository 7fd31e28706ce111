"""The small scorers of pictures: colour, digit, ocr, video_frames."""

import importlib.util
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from rl_core.errors import RecipeError
from rl_core.rewards import Sample, Scorer, Unscored, reward_scorers
from rl_core.rewards.scorers.digit import Judge, classifier
from rl_core.rewards.scorers.ocr import edit_distance, quoted


def make(**block: Any) -> Scorer:
    cls, config = reward_scorers.resolve(block, "rewards.0")
    return cls(config)


def plain(colour: str, size: int = 8) -> Image.Image:
    return Image.new("RGB", (size, size), colour)


def test_colour_pays_every_step_towards_the_named_colour():
    scorer = make(name="colour")
    seen = ["red", "#c00000", "#800000", "black", "cyan"]
    scores = [
        float(score)
        for score in scorer.score([Sample("a RED ball", image=plain(one)) for one in seen])
    ]  # type: ignore[arg-type]
    assert scores[0] == 1.0
    assert scores[-1] == pytest.approx(0.0)
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("prompt", ["a ball", "red or blue", "a redder ball"])
def test_colour_marks_prompts_that_do_not_name_one(prompt: str):
    (found,) = make(name="colour").score([Sample(prompt, image=plain("red"))])
    assert isinstance(found, Unscored)


@pytest.mark.parametrize(
    ("judge", "first_unseen", "certain"),
    # A density is sure of usual digits alone.
    [("network", 1, 0.9), ("density", 1, 0.7), ("trees", 0, 0.9)],
)
def test_each_digit_judge_reads_the_half_it_has_not_seen(
    judge: str, first_unseen: int, certain: float
):
    from sklearn.datasets import load_digits

    digits: Any = load_digits()
    words = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    rows = range(first_unseen, 400, 2)
    samples = [
        Sample(
            f"a photo of the digit {words[digits.target[row]]}",
            image=_as_picture(digits.images[row]),
        )
        for row in rows
    ]
    wrong = [
        Sample(f"the digit {(digits.target[row] + 1) % 10}", image=_as_picture(digits.images[row]))
        for row in rows
    ]
    scorer = make(name="digit", judge=judge)
    right_scores, wrong_scores = (
        np.array([float(one) for one in scorer.score(asked)]) for asked in (samples, wrong)
    )  # type: ignore[arg-type]
    assert (right_scores > 0.5).mean() > certain
    assert (wrong_scores < 0.5).mean() > 0.95


@pytest.mark.parametrize("prompt", ["a digit", "seven or 8", "the number 42"])
def test_digit_marks_prompts_that_do_not_name_one(prompt: str):
    (found,) = make(name="digit", judge="trees").score([Sample(prompt, image=plain("black"))])
    assert isinstance(found, Unscored)


def test_digit_takes_the_rows_own_digit_before_the_prompts():
    picture = plain("black")
    scorer = make(name="digit", judge="trees")
    odd, named, wrong = scorer.score(
        [
            Sample("siete", image=picture, metadata={"digit": 7}),
            Sample("seven", image=picture),
            Sample("seven", image=picture, metadata={"digit": 17}),
        ]
    )
    assert odd == named
    assert isinstance(wrong, Unscored)


def _as_picture(levels: np.ndarray) -> Image.Image:
    """An 8 x 8 digit, enlarged."""
    small = Image.fromarray((levels / 16 * 255).astype(np.uint8))
    return small.resize((32, 32), Image.Resampling.NEAREST).convert("RGB")


def test_a_sample_without_a_picture_is_marked():
    no_picture, picture = make(name="colour").score(
        [Sample("red"), Sample("red", image=plain("red"))]
    )
    assert isinstance(no_picture, Unscored)
    assert picture == 1.0


def test_quotes_and_distances():
    assert quoted("a sign \"STOP\" and \u201cgo on\u201d, it's 'here'") == ["STOP", "go on", "here"]
    assert quoted("it's Ann's") == []
    cases = {
        ("", ""): 0,
        ("abc", ""): 3,
        ("kitten", "sitting"): 3,
        ("flaw", "lawn"): 2,
        ("ab", "ba"): 2,
    }
    for (first, second), distance in cases.items():
        assert edit_distance(first, second) == edit_distance(second, first) == distance


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("rapidocr") is None, reason="the extra `rewards` is not installed"
)
def test_ocr_reads_what_is_written():
    image = Image.new("RGB", (240, 64), "white")
    ImageDraw.Draw(image).text((16, 8), "HELLO 42", fill="black", font=ImageFont.load_default(40))
    prompts = [
        'a sign that says "Hello 42"',
        'a sign that says "HELLO"',
        'a sign that says "xyz"',
        "a sign",
    ]
    exact, part, wrong, none = make(name="ocr").score(
        [Sample(prompt, image=image) for prompt in prompts]
    )
    assert (exact, wrong) == (1.0, 0.0)
    assert part == pytest.approx(5 / 7), "text beyond what was asked for costs"
    assert isinstance(none, Unscored)


def video(*colours: str) -> Sample:
    return Sample("a red room", frames=tuple(plain(colour) for colour in colours))


def test_video_frames_looks_at_evenly_spaced_frames_first_and_last_among_them():
    scorer = make(name="video_frames", scorer={"name": "colour"}, num_frames=3)
    assert list(scorer.score([video("red", "cyan", "red", "cyan", "red")])) == [1.0]
    found = scorer.score(
        [video("red", "cyan", "cyan", "cyan", "cyan"), video("red"), Sample("a red room")]
    )
    assert found[0] == pytest.approx(1 / 3)
    assert found[1] == 1.0
    assert isinstance(found[2], Unscored)


def test_video_frames_may_take_the_worst_and_marks_what_the_inner_scorer_marks():
    scorer = make(name="video_frames", scorer={"name": "colour"}, num_frames=2, average="min")
    worst, marked = scorer.score([video("red", "cyan"), Sample("a room", frames=(plain("red"),))])
    assert worst == pytest.approx(0.0)
    assert isinstance(marked, Unscored)


def test_video_frames_refuses_a_scorer_of_text():
    with pytest.raises(RecipeError, match="does not score pictures"):
        make(name="video_frames", scorer={"name": "math"})


@pytest.mark.parametrize(
    ("paying", "least", "largest"), [(Judge.NETWORK, 0.3, 1.0), (Judge.DENSITY, -1.0, 0.1)]
)
def test_a_network_is_exploited_and_a_density_is_not(paying: Judge, least: float, largest: float):
    rng = np.random.default_rng(0)
    asked = np.arange(60) % 10
    pictures = _half_noise(rng, asked)
    paid = _probabilities(paying, pictures, asked)
    for _ in range(600):
        # Each picture keeps a random change that pays.
        change = rng.normal(0, 0.12, pictures.shape) * (rng.random(pictures.shape) < 0.15)
        changed = (pictures + change).clip(0, 1)
        then = _probabilities(paying, changed, asked)
        pays = then > paid
        pictures[pays], paid[pays] = changed[pays], then[pays]

    independent = _probabilities(Judge.TREES, pictures, asked)

    assert paid.mean() > 0.8
    assert least < paid.mean() - independent.mean() < largest


def _half_noise(rng: np.random.Generator, asked: np.ndarray) -> np.ndarray:
    """Return pictures half of a digit and half of noise, [N, 64] of 0..1."""
    from sklearn.datasets import load_digits

    digits: Any = load_digits()
    places = [rng.choice(np.flatnonzero(digits.target == digit)) for digit in asked]
    return 0.5 * digits.data[places] / 16 + 0.3 * rng.uniform(0, 1, (len(asked), 64))


def _probabilities(judge: Judge, pictures: np.ndarray, asked: np.ndarray) -> np.ndarray:
    return classifier(judge).predict_proba(pictures)[np.arange(len(asked)), asked]
