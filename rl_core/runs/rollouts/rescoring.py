"""Rewards computed anew over stored rollouts, by the environments and scorers of another recipe.

The reward of a row is put together as in training: environment, weighted scores, shaping of
truncated and long replies. In a tree the pictures are scored, and a text earns those of its
pictures.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rl_core.algorithms import algorithms
from rl_core.algorithms.shaping import soft_overlong_penalty
from rl_core.data.prepare.items import PlayedItem
from rl_core.data.store.prompt_rows import load_prepared
from rl_core.errors import RecipeError, StorageError
from rl_core.rewards.base import Sample
from rl_core.rewards.combine import Earned, combine
from rl_core.rewards.samples import conversation_of, prompt_text, with_groups
from rl_core.rewards.service import RewardService
from rl_core.runs.rollouts.reading import Row, read_rows, steps_of
from rl_core.runs.rollouts.replay import replay, replies_of
from rl_core.runs.run_folder import RunFolder
from rl_core.runs.versions.scorer_models import with_folders
from rl_core.runtime.home import Home
from schemas.recipe import Recipe
from schemas.sections.tracks import Propagation


@dataclass(frozen=True)
class Rescored:
    """A stored row with its old and its new reward."""

    step: int
    track: str
    sample_id: str
    old: float
    new: float
    """NaN if the row has no new reward."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Weighted parts of the new reward."""
    error: str | None = None
    """Reason why the row has no new reward."""

    @property
    def changed(self) -> bool:
        """True if the new reward is another one; training adds rewards up in single precision."""
        return not math.isclose(self.old, self.new, rel_tol=1e-5, abs_tol=1e-7)


def rescore(
    folder: RunFolder, before: Recipe, recipe: Recipe, step: int | None = None
) -> Iterator[Rescored]:
    """Yield every stored row with its new reward, step by step; rows that failed in training are
    left out.

    Args: before: the run's recipe. recipe: its environments, scorers and shaping are used.
    Raises: RecipeError when its domain is another; StorageError when rollouts or prepared rows are
    missing.
    """
    if before.has_pairs or recipe.domain is not before.domain:
        if before.has_pairs:
            why = "rewards of pairs are their sides, and are not computed"
        else:
            why = f"the recipe is of the domain {recipe.domain}, the run of {before.domain}"
        raise RecipeError(f"rescore: {why}")
    recipe = with_folders(recipe, Home.default())
    service = RewardService(recipe.rewards, recipe.reward_service)
    try:
        for path in steps_of(folder.rollouts, step).values():
            yield from _of_step(folder, recipe, service, path)
    finally:
        service.close()


def write_rescored(found: Sequence[Rescored], path: Path) -> None:
    """Write rows with old and new reward as one Parquet file, in place of an earlier one."""
    import os

    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [vars(one) | {"parts": sorted(one.parts.items())} for one in found]
    text, number = pa.string(), pa.float64()
    columns = [("step", pa.int32()), ("track", text), ("sample_id", text), ("old", number)]
    columns += [("new", number), ("parts", pa.map_(text, number)), ("error", text)]
    building = path.with_name(f".{path.name}.tmp")
    pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema(columns)), building)
    os.replace(building, path)


def _of_step(
    folder: RunFolder, recipe: Recipe, service: RewardService, path: Path
) -> list[Rescored]:
    rows = [row for row in read_rows(path) if not row["failed"]]
    drawn = [row for row in rows if row["parent_id"] and row["made"]]
    own = drawn or rows
    found = {
        id(row): one for row, one in zip(own, _scored(folder, recipe, service, own), strict=True)
    }
    if drawn:
        texts = [row for row in rows if id(row) not in found]
        tree = recipe.tracks or recipe.unified
        propagation = Propagation.MEAN if tree is None else tree.propagation
        for row in texts:
            children = []
            for one in drawn:
                if one["parent_id"] == row["id"] and not math.isnan(found[id(one)].new):
                    children.append(found[id(one)].new)
            found[id(row)] = _earned_by(row, children, propagation)
    return [found[id(row)] for row in rows]


def _earned_by(row: Row, children: Sequence[float], how: Propagation) -> Rescored:
    named = row["step"], row["track"], row["sample_id"], row["reward"]
    if not children:
        return Rescored(*named, math.nan, error="none of its pictures has a score")
    new = max(children) if how is Propagation.MAX else math.fsum(children) / len(children)
    return Rescored(*named, new, {"pictures": new})


def _scored(
    folder: RunFolder, recipe: Recipe, service: RewardService, rows: Sequence[Row]
) -> list[Rescored]:
    played = [row for row in rows if row["env_class"]]
    items = _prepared(folder, {row["uid"] for row in played}) if played else {}
    answers = replay(played, items, recipe.environments, recipe.rollout.episodes)
    heard = {id(row): one for row, one in zip(played, answers, strict=True)}
    env_B = [heard[id(row)].reward if id(row) in heard else 0.0 for row in rows]
    samples = [_sample(folder.rollouts, row, items.get(row["uid"])) for row in rows]
    scores = service.score_samples(with_groups(samples, [row["group_id"] for row in rows]))
    columns = [torch.tensor(scores.by_key[key].scores) for key in service.weights]
    scores_BK = torch.stack(columns, 1) if columns else torch.zeros(len(rows), 0)
    rewards_B, parts = _combined(recipe, rows, torch.tensor(env_B), scores_BK, service.weights)
    rescored = []
    for number, row in enumerate(rows):
        reasons = []
        for key, weight in service.weights.items():
            if weight and (reason := scores.by_key[key].errors[number]):
                reasons.append(f"reward {key}: {reason}")
        if id(row) in heard and heard[id(row)].error:
            reasons.insert(0, f"environment: {heard[id(row)].error}")
        new = math.nan if reasons else float(rewards_B[number])
        mine = {key: float(part_B[number]) for key, part_B in parts.items()}
        named = row["step"], row["track"], row["sample_id"], row["reward"]
        rescored.append(Rescored(*named, new, mine, "; ".join(reasons) or None))
    return rescored


def _combined(
    recipe: Recipe,
    rows: Sequence[Row],
    env_B: Tensor,
    scores_BK: Tensor,
    weights: dict[str, float],
) -> tuple[Tensor, dict[str, Tensor]]:
    lengths_B = torch.tensor([_last_length(row) for row in rows])
    earned = Earned(
        rewards_B=env_B.float(),
        lengths_B=lengths_B,
        truncated_B=torch.tensor([row["truncated"] for row in rows]),
        failed_B=env_B.isnan(),
    )
    limit = recipe.rollout.max_new_tokens
    longest = int(lengths_B.max()) if recipe.draws else limit
    rewarded = combine(earned, scores_BK, weights, recipe.reward_service, longest)
    algorithm, settings = algorithms.resolve(recipe.algorithm, "algorithm")
    overlong = getattr(algorithm(settings).config, "overlong", None)
    rewards_B = rewarded.rewards_B
    if overlong is not None and overlong.buffer:
        rewards_B = rewards_B + soft_overlong_penalty(
            lengths_B, limit, overlong.buffer, overlong.penalty
        )
    return rewards_B, rewarded.parts


def _prepared(folder: RunFolder, uids: set[str]) -> dict[str, PlayedItem]:
    """Return the prepared prompts with these uids."""
    known = folder.prepared
    path = None if known is None else known / "train.parquet"
    if path is None or not path.is_file():
        raise StorageError(
            f"{path or folder.root / 'run.json'}: the prepared rows of this run are gone, and with "
            "them what its environments need; run its recipe again to prepare them, or rescore a "
            "run of this version"
        )
    return {item["uid"]: item for item in load_prepared(path) if item["uid"] in uids}


def _last_length(row: Row) -> int:
    lengths = []
    for one in row["turns"] or []:
        if one["role"] == "assistant":
            lengths.append(one["num_tokens"])
    if lengths:
        return lengths[-1]
    return row["num_tokens"]


def _sample(folder: Path, row: Row, item: PlayedItem | None) -> Sample:
    frames = [] if row["made"] is None else _frames(folder / row["made"])
    extras = {} if item is None else item["env_extras"]
    return Sample(
        prompt=prompt_text(json.loads(row["prompt"])),
        replies=tuple(replies_of(row)),
        image=frames[0] if len(frames) == 1 else None,
        frames=tuple(frames) if len(frames) > 1 else (),
        ground_truth=json.loads(row["ground_truth"]),
        num_tokens=_last_length(row),
        is_truncated=row["stop_reason"] in ("length", "context"),
        metadata=json.loads(row["metadata"]) if row["metadata"] else extras,
        messages=conversation_of(json.loads(row["prompt"]), replies_of(row), row["turns"]),
    )


def _frames(path: Path) -> list[Any]:
    from PIL import Image

    try:
        with Image.open(path) as file:
            frames = []
            for number in range(getattr(file, "n_frames", 1)):
                file.seek(number)
                frames.append(file.convert("RGB"))
            return frames
    except OSError as error:
        raise StorageError(f"{path}: not a readable picture ({error})") from error
