"""Selection of a file's contract: by name, or by its first rows."""

from collections import Counter
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from rl_core.data.read.formats import PARQUET, format_of
from rl_core.data.read.parquet_files import batch_values, open_parquet
from rl_core.data.read.readers import check_file, raw_values
from rl_core.data.read.remote import base_of
from schemas.rows.contract import RowContract, SchemaName
from schemas.rows.conversation_rows import conversation_contract, is_conversation
from schemas.rows.ground_truth import AllowedEnvClasses
from schemas.rows.media_checks import MediaLimits
from schemas.rows.media_prompts import LEGACY_FIELDS, media_contract
from schemas.rows.preference_rows import preference_contract
from schemas.rows.preference_shapes import is_pair
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
    pairs_alone: bool = False,
) -> RowContract:
    """Return the contract of a file's rows.

    Args: media_root: folder of relative media paths; unset means the file's own folder.
    pairs_alone: no image of a preference row is opened.
    """
    folder = media_root or base_of(Path(path))
    if schema is SchemaName.MEDIA:
        return media_contract(folder, limits, prompt_key)
    if schema is SchemaName.PREFERENCE:
        return preference_contract(None if pairs_alone else folder, limits, needs_image=False)
    if schema is SchemaName.RESPONSE:
        return response_contract()
    if schema is SchemaName.CONVERSATION:
        return conversation_contract(allowed_env_classes, default_env_class)
    return prompt_contract(allowed_env_classes, default_env_class)


def recognise(path: Path | str, *, prompt_key: str = "prompt") -> SchemaName:
    """Recognise the contract from a file's first readable rows; the default is prompt rows."""
    file = check_file(path)
    if format_of(file) == PARQUET:
        with open_parquet(file) as table:
            first = list(islice(table.iter_batches(NUM_LOOKED_AT), 1))
            values = [
                raw.value
                for batch in first
                for raw in batch_values(batch, 1, file, lambda *_: None)
            ]
    else:
        raws = raw_values(path, prompt_key=prompt_key, on_bad_line=lambda *_: None)
        values = [raw.value for raw in islice(raws, NUM_LOOKED_AT)]
    votes = Counter(_kind_of(value, prompt_key) for value in values)
    return votes.most_common(1)[0][0] if votes else SchemaName.PROMPT


def _kind_of(value: str | Mapping[str, Any], prompt_key: str) -> SchemaName:
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
    return (
        SchemaName.MEDIA
        if is_text or keys & {"media", "media_refs", *LEGACY_FIELDS}
        else SchemaName.PROMPT
    )
