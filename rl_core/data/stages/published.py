"""Files of a published result that hold the rows of a split."""

import json
from pathlib import Path

from rl_core.data.order.preference_dataset import META
from rl_core.data.order.vision_dataset import PARQUET
from rl_core.errors import DataError

_EVAL_NAMES = {"prompts.jsonl": "eval_prompts.jsonl"}


def split_files(path: Path, split: str) -> list[Path]:
    """Return the files that an artifact's path refers to in a recipe's `data.train` or `data.eval`.

    Args: path: a text manifest, a diffusion prompt file, a vision cache, or the meta of an `mpo`
    cache, whose pairs the recipe's own blocks divide into splits. split: `train` or `eval`.
    Raises: DataError when the artifact has no rows of that split, or cannot be used in `data` at
    all.
    """
    if path.name == META:
        return [path]
    if path.name == "manifest.json":
        shards = json.loads(path.read_text(encoding="utf-8"))["val" if split == "eval" else "train"]
        found = [path.parent / shard for shard in shards]
    elif path.name in _EVAL_NAMES:
        named = path if split == "train" else path.with_name(_EVAL_NAMES[path.name])
        found = [named] if named.is_file() else []
    elif (path / PARQUET).is_file():
        found = [path / PARQUET] if split == "train" else []
    else:
        raise DataError(
            f"{path}: not a list of prompt rows; name it where the trainer of that data wants it"
        )
    if not found:
        raise DataError(
            f"{path}: has no rows for data.{split}; prepare it with held-out rows, or name "
            "another file"
        )
    return found
