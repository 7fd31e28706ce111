"""Batches of checked rows, as preparation reads them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_core.data.check.batches import checked_batches
from schemas.receipts import Rejection
from schemas.rows.contract import RowContract

BAD: dict[int, dict[str, Any]] = {
    3: {"env_class": "chess"},
    700: {"prompt": [{"role": "user", "content": " "}]},
    701: {"reward_spec": {"method": "rule"}},
    999: {"prompt": [{"role": "narrator", "content": "Once"}]},
}
"""Changes of rows, by number."""
NUM_ROWS = 1000


def test_of_a_parquet_file_the_contract_judges_only_what_whole_columns_leave_open(
    tmp_path: Path,
    good_row: Callable[..., dict[str, Any]],
    jsonl: Callable[..., Path],
    allowed: dict[str, frozenset[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judged: list[int] = []
    validate = RowContract.validate

    def counting(self: RowContract, rows: Any, *, file: str, row_numbers: Any) -> list[Rejection]:
        judged.extend(row_numbers)
        return validate(self, rows, file=file, row_numbers=row_numbers)

    def checked(file: Path) -> tuple[list[dict[str, Any]], list[tuple[str, str]]]:
        batches = list(checked_batches(file, allowed_env_classes=allowed, default_env_class=None))
        accepted = [row for batch in batches for _, row in batch.accepted()]
        rejections = [one for batch in batches for one in batch.rejections]
        return accepted, [(one.field, one.reason) for one in rejections]

    monkeypatch.setattr(RowContract, "validate", counting)
    rows = [good_row() | BAD.get(number, {}) for number in range(1, NUM_ROWS + 1)]
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(rows), file, row_group_size=300)
    accepted, refused = checked(file)
    assert judged == list(BAD) and len(accepted) == NUM_ROWS - len(BAD)
    judged.clear()
    # The same rows, all of them judged by the contract.
    assert checked(jsonl("rows.jsonl", rows)) == (accepted, refused)
    assert len(judged) == NUM_ROWS
