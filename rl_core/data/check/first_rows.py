"""The first rows of files against their contract, for an answer before anything is prepared."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from rl_core.data.check.batches import Batch, unreadable
from rl_core.data.check.contracts import recognise
from rl_core.data.check.parts import CheckSettings, as_contract_rows, own_ids
from rl_core.data.check.trials import RowTrials
from rl_core.data.read.readers import raw_values
from rl_core.data.read.unpaired_rows import paired
from rl_core.data.store.id_places import IdPlaces
from rl_core.errors import DataError
from schemas.receipts import Rejection
from schemas.rows.contract import SchemaName

NUM_ROWS = 100
"""Number of rows of each file that are checked."""


def check_first_rows(
    train: Sequence[Path], settings: CheckSettings, held_out: Sequence[Path] = ()
) -> tuple[int, list[Rejection]]:
    """Check the first rows of each file.

    Args: held_out: files of another split, whose ids may be those of `train`.
    Returns: the number of rows that were read, and every problem of theirs. Raises: DataError when
    a file cannot be read.
    """
    with settings.row_trials() as trials:
        checked = []
        for files, ids in ((train, IdPlaces(train)), (held_out, IdPlaces(held_out))):
            for file in files:
                checked.append(_check(file, settings, trials, ids))
    return sum(num for num, _ in checked), [one for _, found in checked for one in found]


def _check(
    file: Path, settings: CheckSettings, trials: RowTrials | None, ids: IdPlaces
) -> tuple[int, list[Rejection]]:
    schema = settings.schema or recognise(file, prompt_key=settings.prompt_key)
    bad_lines: list[Rejection] = []

    def on_bad_line(number: int, error: DataError) -> None:
        bad_lines.append(unreadable(str(file), number, str(error)))

    values = raw_values(file, prompt_key=settings.prompt_key, on_bad_line=on_bad_line)
    if schema is SchemaName.PREFERENCE:
        values = paired(values, str(file), on_bad_line)
    raws = list(islice(values, NUM_ROWS))
    rows = as_contract_rows([raw.value for raw in raws], schema, settings)
    contract = settings.contract(schema, str(file))
    batch = Batch([raw.number for raw in raws], rows, bad_lines)
    batch.rejections += contract.validate(rows, file=str(file), row_numbers=batch.numbers)
    if trials is not None and schema is SchemaName.PROMPT:
        batch.try_rows(trials, str(file))
    if schema is SchemaName.MEDIA:
        found = []
        for n, prompt_id in own_ids(batch):
            found.append((n, ids.problem(prompt_id, f"{file}:{n}")))
        batch.rejections += [one.rejection(str(file), n) for n, one in found if one is not None]
    return batch.num_rows, sorted(batch.rejections, key=lambda one: one.row)
