"""Rows of NeMo Gym: `{nemo_gym: rows.jsonl, env_class: weather}` in a recipe's data, a file with a
`responses_create_params` and what the server verifies by in each line."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field

from rl_core.builtin.data.environments.base import EnvironmentRows
from rl_core.errors import DataError
from rl_core.runtime.user_paths import user_path
from schemas.rows.response_rows import as_prompt_row


class NemoGymRows(EnvironmentRows):
    """Tasks of a NeMo Gym resources server."""

    nemo_gym: str = Field(min_length=1)
    """File of rows, JSON lines; a relative path starts at the current folder."""

    @property
    def source(self) -> str:
        """Name of the file in the rows' `data_source`."""
        return f"nemo_gym/{Path(self.nemo_gym).stem}"

    @property
    def content(self) -> str:
        """Digest of the file, so that an edited one makes new rows."""
        path = user_path(self.nemo_gym)
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""

    def tasks(self) -> Iterator[dict[str, object]]:
        """Yield the rows. Raises: DataError with the line that is none."""
        path = user_path(self.nemo_gym)
        if not path.is_file():
            raise DataError(f"nemo_gym: there is no file {path}")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise DataError(f"{path}:{number}: no JSON: {error}") from error
            params = row.get("responses_create_params") if isinstance(row, dict) else None
            if not isinstance(params, dict) or not params.get("input"):
                raise DataError(
                    f"{path}:{number}: responses_create_params: must be an object with `input`, "
                    f"got {params!r:.100}"
                )
            yield {
                "key": json.dumps(row, sort_keys=True),
                "prompt": as_prompt_row(row)["prompt"],
                # The server grades, by the whole row.
                "reward_spec": {"method": "nemo_gym", "ground_truth": f"{path.name}:{number}"},
                "extra_info": {"index": number - 1, "nemo_gym_row": json.dumps(row)},
            }
