"""Check of one file against its contract, in parts that can run anywhere: in threads here, or on a
cluster."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_core.data.check.batches import Batch, raw_batches, unreadable
from rl_core.data.check.columns import suspicious_rows
from rl_core.data.check.contracts import contract_of, names_files, recognise
from rl_core.data.check.trials import RowTrials, Tried, is_played, oracle_stride, row_trials
from rl_core.data.prepare.parallel import ordered_map
from rl_core.data.read.files.parquet_files import batch_values, open_parquet, record_batches
from rl_core.data.read.formats import PARQUET, format_of
from rl_core.data.read.readers import check_file, normalise
from rl_core.envs.trials.settings import TrialSettings
from rl_core.errors import DataError
from schemas.receipts import Rejection
from schemas.rows.contract import RowContract, SchemaName
from schemas.rows.conversation_rows import conversation_row
from schemas.rows.ground_truth import AllowedEnvClasses
from schemas.rows.media_checks import MediaLimits
from schemas.rows.problems import get
from schemas.rows.response_rows import PARAMS

if TYPE_CHECKING:
    import pyarrow as pa

MAX_PART_ROWS = 250_000
PLAYED = (SchemaName.PROMPT, SchemaName.CONVERSATION)
"""Contracts of rows that may name an environment."""


@dataclass(frozen=True)
class CheckSettings:
    """Settings that decide which rows are good."""

    allowed_env_classes: AllowedEnvClasses
    default_env_class: str | None = None
    prompt_key: str = "prompt"
    schema: SchemaName | None = None
    """Contract of every file; unset recognises each file's own."""
    media_root: Path | None = None
    """Folder of relative media paths; unset means the folder of the file that names them."""
    limits: MediaLimits = field(default_factory=MediaLimits)
    texts_alone: bool = False
    """Open no image of a prompt or preference row."""
    trials: TrialSettings | None = None
    """Settings of the trials of prompt rows with their environments; unset tries none."""

    def row_trials(self, num_workers: int = 0) -> AbstractContextManager[RowTrials | None]:
        """Return what tries the rows, for a `with` block; it gives None if no row is to be tried.

        Args: num_workers: processes; 0 means one for each core.
        """
        return row_trials(self.trials, self.default_env_class, num_workers)

    def contract(self, schema: SchemaName, file: str) -> RowContract:
        """Return the contract of a file's rows."""
        return contract_of(
            schema,
            file,
            self.allowed_env_classes,
            self.default_env_class,
            prompt_key=self.prompt_key,
            media_root=self.media_root,
            limits=self.limits,
            texts_alone=self.texts_alone,
        )


@dataclass(frozen=True)
class Part:
    """Rows of one file that are checked together."""

    file: str
    schema: SchemaName
    groups: tuple[int, ...] | None = None
    """Row groups of a Parquet file; None means the whole file."""
    first_number: int = 1
    oracle_stride: int = 0
    """Every how many rows one is played by its environment; 0 plays none."""


@dataclass
class Checked:
    """Result of checking some rows."""

    num_rows: int
    num_rejected: int
    rejections: list[Rejection]
    warnings: list[Rejection] = field(default_factory=list)
    """Rows that may be used, but hardly teach anything."""
    untried: dict[str, str] = field(default_factory=dict)
    """Reasons why rows of an environment were not built or not played."""
    ids: list[tuple[int, str]] = field(default_factory=list)
    """The number and the id of each good row that has an id of its own."""
    names_files: bool = False
    """True if a row names pictures that lie in files of their own."""


def parts_of(path: Path | str, settings: CheckSettings, num_files: int = 1) -> list[Part]:
    """Return the parts of a file.

    Args: num_files: number of files that share the sample of played rows.
    Raises: DataError when it cannot be opened.
    """
    file = check_file(path)
    schema = settings.schema or recognise(file, prompt_key=settings.prompt_key)
    stride = _stride(file, schema, settings, num_files)
    if format_of(file) != PARQUET or schema is not SchemaName.PROMPT:
        return [Part(str(path), schema, oracle_stride=stride)]
    with open_parquet(file) as table:
        sizes = [table.metadata.row_group(group).num_rows for group in range(table.num_row_groups)]
    parts: list[Part] = []
    groups: list[int] = []
    first = number = 1
    for group, size in enumerate(sizes):
        groups.append(group)
        number += size
        if number - first >= MAX_PART_ROWS or group == len(sizes) - 1:
            parts.append(Part(str(path), schema, tuple(groups), first, stride))
            groups, first = [], number
    return parts or [Part(str(path), schema)]


def _stride(file: Path, schema: SchemaName, settings: CheckSettings, num_files: int) -> int:
    if settings.trials is None or schema not in PLAYED:
        return 0
    wanted = settings.trials.oracle_rows
    return oracle_stride(file, wanted and max(1, wanted // num_files))


def check_part(
    part: Part,
    settings: CheckSettings,
    trials: RowTrials | None = None,
    num_threads: int = 0,
) -> Iterator[Checked]:
    """Yield every problem of a part, batch by batch, in row order.

    Args: trials: tries the rows that passed their contract; unset tries none. num_threads: 0 means
    all cores. Raises: DataError when the file cannot be read.
    """
    if part.groups is not None:
        yield from _check_arrow(part, settings, trials, num_threads)
        return
    contract = settings.contract(part.schema, part.file)

    def check(batch: Batch) -> tuple[Batch, Tried]:
        rows = as_contract_rows(batch.rows, part.schema, settings)
        batch.rows = rows
        batch.rejections += contract.validate(rows, file=part.file, row_numbers=batch.numbers)
        if trials is None or part.schema not in PLAYED:
            return batch, Tried()
        if part.schema is SchemaName.CONVERSATION:
            good = []
            for _, row in batch.accepted():
                good.append(conversation_row(row, settings.default_env_class))
            batch = Batch([n for n, _ in batch.accepted()], good, batch.rejections)
            tried = batch.try_rows(trials, part.file, part.oracle_stride, named_alone=True)
            return batch, tried
        return batch, batch.try_rows(trials, part.file, part.oracle_stride)

    pairs = part.schema is SchemaName.PREFERENCE
    batches = raw_batches(part.file, settings.prompt_key, pairs=pairs)
    for batch, tried in ordered_map(check, batches, num_threads):
        batch.rejections.sort(key=lambda rejection: rejection.row)
        yield Checked(
            batch.num_rows,
            len(batch.rejected_numbers),
            batch.rejections,
            tried.warnings,
            tried.untried,
            own_ids(batch) if part.schema is SchemaName.MEDIA else [],
            any(names_files(part.schema, row) for row in batch.rows),
        )


def own_ids(batch: Batch) -> list[tuple[int, str]]:
    """Return the number and the id of each good row of a batch that has an id of its own."""
    ids = [(number, get(row, "prompt_id")) for number, row in batch.accepted()]
    return [(number, str(prompt_id)) for number, prompt_id in ids if prompt_id is not None]


def as_contract_rows(
    values: Sequence[Any], schema: SchemaName, settings: CheckSettings
) -> list[dict[str, object]]:
    """Return raw values as the rows that their contract is about."""
    if schema is SchemaName.PROMPT:
        return [normalise(value, settings.prompt_key) for value in values]
    return [{"prompt": value} if isinstance(value, str) else value for value in values]


def _check_arrow(
    part: Part,
    settings: CheckSettings,
    trials: RowTrials | None,
    num_threads: int,
) -> Iterator[Checked]:
    file = Path(part.file).expanduser()
    contract = settings.contract(part.schema, part.file)

    def check(numbered: "tuple[int, pa.RecordBatch]") -> Checked:
        first, batch = numbered
        checked = _check_record_batch(batch, first, part.file, contract, settings)
        if trials is None:
            return checked
        return _try_arrow(checked, trials, batch, first, part, key)

    def numbered() -> "Iterator[tuple[int, pa.RecordBatch]]":
        first = part.first_number
        for batch in record_batches(file, part.groups):
            yield first, batch
            first += batch.num_rows

    key = settings.prompt_key
    yield from ordered_map(check, numbered(), num_threads)


def _try_arrow(
    checked: Checked,
    trials: RowTrials,
    batch: "pa.RecordBatch",
    first: int,
    part: Part,
    prompt_key: str,
) -> Checked:
    """Try the good rows of an Arrow batch; prompts, most of their text, are converted for played
    rows alone."""
    bad = {rejection.row for rejection in checked.rejections}
    places = [place for place in range(batch.num_rows) if first + place not in bad]
    played = [place for place in places if is_played(first + place, part.oracle_stride)]
    prompts = {prompt_key, "prompt"} & set(batch.schema.names)
    if PARAMS in batch.schema.names or not prompts:
        prompts, played = set[str](), places
    brief = batch.drop_columns(list(prompts))
    rows = _rows_at(brief, places, first, part.file, prompt_key)
    rows |= _rows_at(batch, played, first, part.file, prompt_key) if prompts else {}
    tried = trials(list(rows.values()), list(rows), part.file, part.oracle_stride)
    found = sorted([*checked.rejections, *tried.rejections], key=lambda rejection: rejection.row)
    num_rejected = checked.num_rejected + len({one.row for one in tried.rejections})
    return replace(
        checked,
        num_rejected=num_rejected,
        rejections=found,
        warnings=tried.warnings,
        untried=tried.untried,
    )


def _rows_at(
    batch: "pa.RecordBatch", places: list[int], first: int, file: str, prompt_key: str
) -> dict[int, dict[str, Any]]:
    """Return the rows at some places of a batch, by number; what cannot be read was refused."""
    if not places:
        return {}
    taken = batch if len(places) == batch.num_rows else batch.take(places)
    raws = batch_values(taken, 0, Path(file), lambda *_: None)
    return {first + places[raw.number]: normalise(raw.value, prompt_key) for raw in raws}


def _check_record_batch(
    batch: "pa.RecordBatch",
    first: int,
    file: str,
    contract: RowContract,
    settings: CheckSettings,
) -> Checked:
    key, allowed = settings.prompt_key, settings.allowed_env_classes
    places = sorted(suspicious_rows(batch, allowed, settings.default_env_class, key))
    rejections: list[Rejection] = []

    def on_bad_line(position: int, error: DataError) -> None:
        reason = str(error).partition(f":{position}: ")[2]
        rejections.append(unreadable(file, first + places[position], reason))

    values = list(batch_values(batch.take(places), 0, Path(file), on_bad_line)) if places else []
    numbers = [first + places[raw.number] for raw in values]
    rows = [normalise(raw.value, key) for raw in values]
    rejections += contract.validate(rows, file=file, row_numbers=numbers)
    rejections.sort(key=lambda rejection: rejection.row)
    return Checked(
        batch.num_rows,
        len({rejection.row for rejection in rejections}),
        rejections,
        # The check of whole columns sends every row with images here.
        names_files=any(names_files(SchemaName.PROMPT, row) for row in rows),
    )
