"""A number in a recipe is a finite number, in every section and every plug-in: found by
introspection, not listed."""

import math
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import pytest
from pydantic import BaseModel, Field, ValidationError

from flows.reference.settings import sections
from rl_core.algorithms import algorithms
from rl_core.algorithms.advantages import advantage_estimators
from rl_core.algorithms.losses import policy_losses
from rl_core.builtin.data.picture_rows import PicturesSpec
from rl_core.builtin.data.prompt_files import DigitsSpec, LetteringSpec, OdditiesSpec
from rl_core.builtin.data.reasoning_problems import GenerateSpec
from rl_core.data.read.sources import SourceSpec
from rl_core.data.stages import stages
from rl_core.envs.registration import config_class, registered, spec
from rl_core.errors import RecipeError
from rl_core.rewards import reward_scorers
from rl_core.runs.recipes import load_recipe, parse_recipe
from rl_core.runtime.registry import PluginConfig
from schemas.recipe import Recipe
from schemas.sections.checks.numbers import LARGEST, holds_numbers
from schemas.sections.preference import PairSource
from schemas.sections.section import Section

SPECS = [
    GenerateSpec,
    DigitsSpec,
    LetteringSpec,
    OdditiesSpec,
    PicturesSpec,
    SourceSpec,
    PairSource,
]


def settings_classes() -> dict[str, type[BaseModel]]:
    """Every class that reads a part of a recipe or of a stage of preparation, by module and
    name."""
    registries = (algorithms, advantage_estimators, policy_losses, reward_scorers, stages)
    plugins = [one.get(name).Config for one in registries for name in one.names()]  # pyright: ignore
    environments = [config_class(spec(env_id, {}).load()) for env_id in registered()]
    waiting = [Recipe, *SPECS, *plugins, *(one for one in environments if one is not None)]
    found: dict[str, type[BaseModel]] = {}
    while waiting:
        one = waiting.pop()
        if found.setdefault(f"{one.__module__}.{one.__qualname__}", one) is one:
            inside = [
                inner for field in one.model_fields.values() for inner in sections(field.annotation)
            ]
            waiting += [inner for inner in inside if inner not in found.values()]
    return found


CLASSES = settings_classes()
FIELDS = [
    (name, key)
    for name, one in CLASSES.items()
    for key, field in one.model_fields.items()
    if holds_numbers(field.annotation)
]
MINIMAL = "name: mine\nmodel: {path: some/model}\ndata: {train: [a.jsonl], eval: [b.jsonl]}\n"
BAD = [
    True,
    False,
    math.inf,
    -math.inf,
    math.nan,
    "inf",
    "nan",
    "-Infinity",
    10**19,
    -(10**19),
    "1" * 20,
    1e300,
]


def holding(annotation: Any, value: Any) -> Iterator[Any]:
    """What a field of this type would be given so that `value` stands where its numbers do."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if annotation in (int, float):
        yield value
    elif origin is Annotated:
        yield from holding(inside[0], value)
    elif origin in (Union, UnionType):
        for one in inside:
            yield from holding(one, value)
    elif origin is dict:
        yield from ({"some": held} for held in holding(inside[1], value))
    elif origin in (list, tuple) and holds_numbers(annotation):
        length = 1 if origin is list or Ellipsis in inside else len(inside)
        yield from ([held] * length for held in holding(inside[0], value))


def test_every_settings_class_is_a_section() -> None:
    assert len(CLASSES) > 80 and len(FIELDS) > 250
    assert [name for name, one in CLASSES.items() if not issubclass(one, Section)] == []


@pytest.mark.parametrize(("name", "key"), FIELDS, ids=lambda part: part.removeprefix("rl_core."))
def test_every_number_refuses_booleans_what_is_not_finite_and_what_is_beyond_reason(
    name: str, key: str
) -> None:
    model = CLASSES[name]
    for bad in BAD:
        given = list(holding(model.model_fields[key].annotation, bad))
        # A word is a word where a field takes words, too.
        words = isinstance(bad, str) and holds_words(model.model_fields[key].annotation)
        assert given
        for value in given if not words else ():
            with pytest.raises(ValidationError) as caught:
                model.model_validate({key: value})
            assert any(problem["loc"][:1] == (key,) for problem in caught.value.errors()), (
                bad,
                caught.value,
            )


def holds_words(annotation: Any) -> bool:
    return annotation is str or any(map(holds_words, get_args(annotation)))


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (
            "optimizer.learning_rate=yes",
            "optimizer.learning_rate: must be a number, not true or false",
        ),
        (
            "optimizer.learning_rate=inf",
            "optimizer.learning_rate: Input should be a finite number, got 'inf'",
        ),
        (
            "optimizer.learning_rate=.inf",
            "optimizer.learning_rate: Input should be a finite number, got inf",
        ),
        (
            "optimizer.learning_rate=10",
            "optimizer.learning_rate: Input should be less than or equal to 1, got 10",
        ),
        ("optimizer.betas=[0.9, 1.0]", "optimizer.betas.1: Input should be less than 1, got 1.0"),
        ("optimizer.betas=[yes, 0.9]", "optimizer.betas: must be a number, not true or false"),
        (
            "rollout.temperature=inf",
            "rollout.temperature: Input should be a finite number, got 'inf'",
        ),
        (
            "rollout.temperature=1000",
            "rollout.temperature: Input should be less than or equal to 100, got 1000",
        ),
        (
            "rollout.temperature=nan",
            "rollout.temperature: Input should be a finite number, got 'nan'",
        ),
        (
            "seed=12345678901234567890",
            "seed: Input should be less than 2147483648, got 12345678901234567890",
        ),
        ("seed=4294967295", "seed: Input should be less than 2147483648, got 4294967295"),
        (
            "training.num_iterations=on",
            "training.num_iterations: must be a number, not true or false",
        ),
        (
            "training.steps_per_iteration=12345678901234567890",
            f"must be between -{LARGEST} and {LARGEST}",
        ),
        (
            "training.max_grad_norm=.inf",
            "training.max_grad_norm: Input should be a finite number, got inf",
        ),
        ("algorithm.kl.coef=yes", "algorithm.kl.coef: must be a number, not true or false"),
        ("algorithm.loss.clip_high=.nan", "clip_high: Input should be a finite number, got nan"),
        (
            "algorithm.advantage={name: gdpo, weights: {a: yes}}",
            "weights: must be a number, not true or false",
        ),
        (
            "environments.lcb.timeout_s=.inf",
            "environments.lcb.timeout_s: Input should be a finite number, got inf",
        ),
        (
            "environments.lcb.timeout_s=1e12",
            "timeout_s: Input should be less than or equal to 10000000",
        ),
        ("rewards=[{name: math, weight: no}]", "weight: must be a number, not true or false"),
        (
            "rewards=[{name: clip, batch_size: 0}]",
            "batch_size: Input should be greater than or equal to 1, got 0",
        ),
        ("data.blend={a: -1.0, b: 1.0}", "data.blend.a: Input should be greater than 0, got -1.0"),
        (
            "data.train=[{task: chain_sum, size: yes}]",
            "data.train.0.size: must be a number, not true or false",
        ),
        ("placement.num_devices=yes", "placement.num_devices: must be a number, not true or false"),
    ],
)
def test_an_override_says_key_value_and_what_would_be_right(override: str, said: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe("text", [override])
    assert said in str(caught.value)


def test_a_file_and_plain_values_are_read_as_strictly_as_overrides(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    for value in ("yes", ".inf", "-.inf", ".nan", "-1", "1e400", "1e3"):
        path.write_text(f"{MINIMAL}optimizer: {{learning_rate: {value}}}\n", encoding="utf-8")
        with pytest.raises(RecipeError, match=r"^mine.yaml: optimizer.learning_rate: .*, got "):
            load_recipe(str(path))
    values = load_recipe("text").model_dump(mode="json")
    with pytest.raises(RecipeError, match="seed: must be a number, not true or false"):
        parse_recipe({**values, "seed": True})


def test_numbers_as_people_write_them_are_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # YAML 1.1 reads 1e-5, which has no dot, as text, and an environment variable is always text.
    monkeypatch.setenv("MY_TEST_RATE", "3e-6")
    path = tmp_path / "mine.yaml"
    rates = {"1e-5": 1e-5, "1.0e-5": 1e-5, "1": 1.0, "'0.5'": 0.5, "'${oc.env:MY_TEST_RATE}'": 3e-6}
    for text, rate in rates.items():
        path.write_text(f"{MINIMAL}optimizer: {{learning_rate: {text}}}\n", encoding="utf-8")
        assert load_recipe(str(path)).optimizer.learning_rate == rate
    loaded = load_recipe(
        str(path), ["optimizer.learning_rate=1e-5", "seed=2147483647", "lora={alpha: 8}"]
    )
    assert (loaded.optimizer.learning_rate, loaded.seed, loaded.lora and loaded.lora.alpha) == (
        1e-5,
        2**31 - 1,
        8.0,
    )


class OwnConfig(PluginConfig):
    """A user's settings of his own."""

    share: float | None = None
    """A number, or nothing."""
    either: bool | int = False
    """A switch, or how often."""
    steps: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """Some numbers."""
    words: dict[str, str] = Field(default_factory=dict)
    """No numbers."""
    anything: Any = None
    """Whatever the user's own code takes."""


def test_a_plug_in_of_ones_own_is_read_as_strictly_and_a_switch_stays_a_switch() -> None:
    assert OwnConfig(either=True, anything=True, share=None).either is True
    assert OwnConfig(either=3, steps=(1, 2), words={"a": "yes"}, anything=math.inf).steps == (1, 2)
    for key, value in (
        ("share", True),
        ("steps", [1, False]),
        ("share", math.inf),
        ("either", 10**20),
    ):
        with pytest.raises(ValidationError) as caught:
            OwnConfig.model_validate({key: value})
        assert caught.value.errors()[0]["loc"][0] == key
