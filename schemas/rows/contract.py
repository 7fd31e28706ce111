"""A row contract: rules per field and per row, applied as one lazy pandera schema, explained row by
row.

The schema decides which rows of a batch are refused, over whole columns at once; only for these are
the rules asked again, for a message with value and remedy. So a good batch costs no message, and a
bad one lists every problem.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from schemas.receipts import Rejection
from schemas.rows.problems import Problem

if TYPE_CHECKING:
    import pandas as pd
    import pandera.pandas as pa

Row = Mapping[str, object]
FieldRule = Callable[[object], list[Problem]]
RowRule = Callable[[Row], list[Problem]]


class SchemaName(StrEnum):
    """The contract that a file's rows are validated against."""

    PROMPT = "prompt"
    """SkyRL prompt rows: prompt, env_class, reward_spec."""
    MEDIA = "media"
    """UniRL prompt files: prompt or caption, with references to media."""
    PREFERENCE = "preference"
    """MMPR rows: image, question, chosen, rejected."""
    CONVERSATION = "conversation"
    """Rows with the answers to learn: messages, or prompt and completion."""
    RESPONSE = "response"
    """Text-RL rows: responses_create_params, plus any other columns the row has."""


@dataclass(frozen=True)
class RowContract:
    """The rules of one kind of row."""

    name: SchemaName
    extract: Callable[[Row], dict[str, object]]
    """Function that returns the checked values of a row by field, with aliases resolved."""
    fields: Mapping[str, FieldRule]
    """Validation rule of each field; a rule gets the extracted value (None where the row has
    none)."""
    row_rule: RowRule = lambda _: []
    """Rule over several extracted fields; not applied where one of those fields is already
    wrong."""

    def problems(self, row: Row) -> list[Problem]:
        """Return every problem of one row."""
        values = self.extract(row)
        return self._of_values(values)

    def schema(self) -> "pa.DataFrameSchema":
        """Return the pandera schema of a frame of extracted values; validate with `lazy=True`."""
        import pandera.pandas as pa

        columns = {}
        for field, rule in self.fields.items():
            columns[field] = pa.Column(object, _cells(field, rule), nullable=True)

        def rows_hold(frame: "pd.DataFrame") -> "pd.Series":
            names = [str(name) for name in frame.columns]
            rows = zip(*(frame[name] for name in names), strict=True)
            return _series(
                (not self.row_rule(dict(zip(names, row, strict=True))) for row in rows), frame
            )

        check = pa.Check(rows_hold, name="row", ignore_na=False)
        return pa.DataFrameSchema(columns, checks=check, strict=False)

    def validate(
        self, rows: Sequence[Row], *, file: str, row_numbers: Sequence[int]
    ) -> list[Rejection]:
        """Return every problem of a batch of rows, in row order; a row may have several."""
        import pandas as pd

        if not rows:
            return []
        values = [self.extract(row) for row in rows]
        columns = {}
        for name in self.fields:
            columns[name] = pd.Series([value[name] for value in values], dtype=object)
        frame = pd.DataFrame(columns)
        rejections: list[Rejection] = []
        for i in failing_rows(self.schema(), frame):
            for problem in self._of_values(values[i]):
                rejections.append(problem.rejection(file, row_numbers[i]))
        return rejections

    def _of_values(self, values: Row) -> list[Problem]:
        found = []
        for field, rule in self.fields.items():
            found.extend(rule(values[field]))
        return found + self.row_rule(values)


def failing_rows(schema: "pa.DataFrameSchema", frame: "pd.DataFrame") -> list[int]:
    """Return the positions of the rows that a schema refuses, ascending; every check is applied.

    Raises: pandera's SchemaErrors when the frame as a whole does not fit (a defect, not a bad row).
    """
    import pandera.errors

    try:
        schema.validate(frame, lazy=True)
    except pandera.errors.SchemaErrors as error:
        failed = sorted({int(index) for index in error.failure_cases["index"].dropna()})
        if not failed:
            raise
        return failed
    return []


def _cells(field: str, rule: FieldRule) -> "pa.Check":
    import pandera.pandas as pa

    # pandera drops nulls before a check unless told otherwise, and a missing value is a problem to
    # report.
    return pa.Check(
        lambda column: _series((not rule(value) for value in column), column),
        name=field,
        ignore_na=False,
    )


def _series(values: Iterable[bool], like: "pd.Series | pd.DataFrame") -> "pd.Series":
    import pandas as pd

    return pd.Series(list(values), index=like.index, dtype=bool)
