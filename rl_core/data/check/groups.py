"""Problems of rows, grouped for a report."""

from collections import Counter
from collections.abc import Iterable

from schemas.receipts import Rejection, RowGroup

ROWS_PER_GROUP = 3


class Groups:
    """Problems of the same kind in the same field, counted, with their first rows."""

    def __init__(self, known: Iterable[RowGroup] = ()) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._first: dict[tuple[str, str], list[Rejection]] = {}
        for group in known:
            self._counts[group.field, group.reason] = group.count
            self._first[group.field, group.reason] = list(group.first)

    def add(self, found: Iterable[Rejection]) -> None:
        """Count further problems."""
        for one in found:
            key = (one.field, one.reason)
            self._counts[key] += 1
            first = self._first.setdefault(key, [])
            if len(first) < ROWS_PER_GROUP:
                first.append(one)

    def in_order(self) -> list[RowGroup]:
        """Return the groups, most frequent first."""
        groups: list[RowGroup] = []
        for (field, reason), count in self._counts.most_common():
            groups.append(
                RowGroup(field=field, reason=reason, count=count, first=self._first[field, reason])
            )
        return groups
