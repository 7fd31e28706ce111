"""Selection of a file's contract: by name, or by its first rows."""

from collections import Counter
from collections.abc import Mapping
from functools import partial
from itertools import islice
from pathlib import Path

from rl_core.data.order.preference_dataset import META
from rl_core.data.read.files.parquet_files import batch_values, open_parquet
from rl_core.data.read.formats import PARQUET, format_of
from rl_core.data.read.readers import check_file, raw_values
from rl_core.data.read.remote import base_of
from rl_core.data.read.row_images import located_image
from schemas.rows.contract import RowContract, SchemaName
from schemas.rows.conversation_rows import conversation_contract, is_conversation
from schemas.rows.ground_truth import AllowedEnvClasses
from schemas.rows.media_checks import MediaLimits
from schemas.rows.media_prompts import LEGACY_FIELDS, media_contract
from schemas.rows.preference_rows import preference_contract
from schemas.rows.preference_shapes import is_pair
from schemas.rows.problems import as_list, get
from schemas.rows.prompt_rows import prompt_contract
from schemas.rows.response_rows import PARAMS, response_contract

NUM_LOOKED_AT = 20


def contract_of(
    schema: SchemaName,
    path: Path | str,
    allowed_env_classes: AllowedEnvClasses,
    default_env_class: str | None = None,
    *,
    prompt_key: str = "prompt",
    media_root: Path | None = None,
    limits: MediaLimits | None = None,
    texts_alone: bool = False,
) -> RowContract:
    """Return the contract of a file's rows.

    Args: media_root: folder of relative media paths; unset means the file's own folder.
    texts_alone: no image of a prompt or preference row is opened. Those of a published cache of
    pairs are not either: their paths begin elsewhere, and it has checked them.
    """
    folder = media_root or base_of(Path(path))
    if schema is SchemaName.MEDIA:
        return media_contract(folder, limits, prompt_key)
    if schema is SchemaName.PREFERENCE:
        alone = texts_alone or _is_annotation(Path(path))
        return preference_contract(None if alone else folder, limits, needs_image=False)
    if schema is SchemaName.RESPONSE:
        return response_contract()
    if schema is SchemaName.CONVERSATION:
        return conversation_contract(allowed_env_classes, default_env_class)
    find = None if texts_alone else partial(located_image, folder=folder)
    return prompt_contract(allowed_env_classes, default_env_class, find, limits)


def names_files(schema: SchemaName, row: object) -> bool:
    """Return True if a row names pictures that lie in files of their own."""
    if not isinstance(row, Mapping):
        return False
    if schema is SchemaName.MEDIA:
        return bool(get(row, "media_refs", "media"))
    if schema is SchemaName.PREFERENCE:
        return get(row, "image") is not None
    images = as_list(get(row, "images")) or []
    return any(not isinstance(one, Mapping) or get(one, "bytes") is None for one in images)


def _is_annotation(path: Path) -> bool:
    """Return True for a file of rows of a cache that the stage `mpo` published."""
    return any((folder / META).is_file() for folder in path.expanduser().absolute().parents)


def recognise(path: Path | str, *, prompt_key: str = "prompt") -> SchemaName:
    """Recognise the contract from a file's first readable rows; the default is prompt rows."""
    file = check_file(path)
    if format_of(file) == PARQUET:
        with open_parquet(file) as table:
            values = []
            for batch in islice(table.iter_batches(NUM_LOOKED_AT), 1):
                values += [raw.value for raw in batch_values(batch, 1, file, lambda *_: None)]
    else:
        raws = raw_values(path, prompt_key=prompt_key, on_bad_line=lambda *_: None)
        values = [raw.value for raw in islice(raws, NUM_LOOKED_AT)]
    votes = Counter(_kind_of(value, prompt_key) for value in values)
    if votes:
        return votes.most_common(1)[0][0]
    return SchemaName.PROMPT


def _kind_of(value: str | Mapping[str, object], prompt_key: str) -> SchemaName:
    if isinstance(value, str):
        return SchemaName.MEDIA
    keys = value.keys()
    if PARAMS in keys:
        return SchemaName.RESPONSE
    if is_pair(keys):
        return SchemaName.PREFERENCE
    if keys & {"env_class", "reward_spec", "reward_model"}:
        return SchemaName.PROMPT
    if is_conversation(keys):
        return SchemaName.CONVERSATION
    is_text = isinstance(value.get(prompt_key), str) or "caption" in keys
    if is_text or keys & {"media", "media_refs", *LEGACY_FIELDS}:
        return SchemaName.MEDIA
    return SchemaName.PROMPT
