"""Data source of a recipe, over prepared items."""

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from rl_core.data.order.curriculum import CurriculumSource
from rl_core.data.order.mixture import BlendedSource
from rl_core.data.order.prompt_source import DataSource
from rl_core.data.order.registry import METHODS, data_sources
from rl_core.data.prepare.items import Item
from rl_core.data.store.views import Selected, uids_of
from rl_core.errors import DataError, RecipeError
from schemas.sections.data import CurriculumConfig

UNNAMED = "other"
PROMPTS = {"name": "prompts"}


def source_class(source: Mapping[str, object]) -> tuple[type[Any], Any]:
    """Return the class that `data.source` names, and the block's other keys as its `Config`.

    Raises: RecipeError when there is none, or it lacks a method.
    """
    cls, config = data_sources.resolve(source, "data.source")
    missing = [name for name in METHODS if not callable(getattr(cls, name, None))]
    if missing:
        raise RecipeError(
            f"data.source: {cls.__name__} has no method {', '.join(missing)}; a data source has "
            f"{', '.join(METHODS)}"
        )
    return cls, config


def training_source(
    items: Sequence[Item],
    batch_size: int,
    seed: int,
    blend: Mapping[str, float] | None,
    curriculum: CurriculumConfig | None = None,
    source: Mapping[str, object] = PROMPTS,
) -> DataSource[Item]:
    """Return the source that `source` names, or one with the shares of `blend` by the rows'
    `data_source`, or by `curriculum`.

    Args: blend: weight of each `data_source`; rows that name none are `other`. Every source among
    the rows must be named. curriculum: excludes `blend`.
    """
    if curriculum is not None:
        return CurriculumSource(
            items,
            uids_of(items),
            batch_size,
            seed,
            floor=curriculum.floor,
            pass_mark=curriculum.pass_mark,
        )
    if not blend:
        cls, config = source_class(source)
        settings = {"config": config} if hasattr(cls, "Config") else {}
        try:
            return cls(items, batch_size, seed, **settings)
        except TypeError as error:
            raise RecipeError(
                f"data.source: {cls.__name__} cannot be made of rows, the number of prompts in a "
                f"step and a seed: {error}"
            ) from error
    places: dict[str, array[int]] = {}
    for place, item in enumerate(items):
        places.setdefault(_source_of(item), array("I")).append(place)
    by_source = {name: Selected(items, found) for name, found in places.items()}
    if by_source.keys() != blend.keys():
        raise DataError(
            f"data.blend names {sorted(blend)}; the rows' data_source are {sorted(by_source)}: "
            "name each once"
        )
    return BlendedSource(by_source, blend, batch_size, seed)


def _source_of(item: Item) -> str:
    extras = item["env_extras"] if "env_extras" in item else item.get("metadata") or {}
    return str(extras.get("data_source") or UNNAMED)
