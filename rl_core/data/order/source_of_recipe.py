"""Data source of a recipe, over prepared items."""

from collections.abc import Mapping, Sequence
from typing import Any

from rl_core.data.order.curriculum import CurriculumSource
from rl_core.data.order.mixture import BlendedSource
from rl_core.data.order.prompt_source import DataSource, PromptSource
from rl_core.errors import DataError
from schemas.data import CurriculumConfig

UNNAMED = "other"


def training_source(
    items: Sequence[dict[str, Any]],
    batch_size: int,
    seed: int,
    blend: Mapping[str, float] | None,
    curriculum: CurriculumConfig | None = None,
) -> DataSource[dict[str, Any]]:
    """Return a source over all items alike, with the shares of `blend` by the rows' `data_source`,
    or by `curriculum`.

    Args: blend: weight of each `data_source`; rows that name none are `other`. Every source among
    the rows must be named. curriculum: excludes `blend`.
    """
    if curriculum is not None:
        uids = [str(item["uid"]) for item in items]
        return CurriculumSource(
            items, uids, batch_size, seed, floor=curriculum.floor, pass_mark=curriculum.pass_mark
        )
    if not blend:
        return PromptSource(items, batch_size, seed)
    by_source: dict[str, list[dict[str, Any]]] = {}
    for item in items:
        by_source.setdefault(str(item["env_extras"].get("data_source") or UNNAMED), []).append(item)
    if by_source.keys() != blend.keys():
        raise DataError(
            f"data.blend names {sorted(blend)}; the rows' data_source are {sorted(by_source)}: "
            "name each once"
        )
    return BlendedSource(by_source, blend, batch_size, seed)
