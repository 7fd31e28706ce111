"""Sequences whose items are read or made on access, so that memory holds no item."""

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TypeVar, overload

from rl_core.data.prepare.items import Item

T = TypeVar("T")


class View(Sequence[T]):
    """Sequence that makes an item on each access; a slice is a list, and two sequences of the same
    items are equal."""

    def item(self, place: int) -> T:
        """Return the item at a place from 0 up to the length."""
        raise NotImplementedError

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return [self.item(place) for place in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(f"{index} of {len(self)} items")
        return self.item(place)

    def __iter__(self) -> Iterator[T]:
        return (self.item(place) for place in range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        same = (mine == its for mine, its in zip(self, other, strict=False))
        return len(self) == len(other) and all(same)

    __hash__ = None  # pyright: ignore[reportAssignmentType]


class Selected(View[T]):
    """Some items of a sequence, by their places: four bytes each.

    Args: places: places in `items`, in the order of this sequence, below 2**32.
    """

    def __init__(self, items: Sequence[T], places: "array[int]") -> None:
        self._items, self._places = items, places

    def __len__(self) -> int:
        return len(self._places)

    def item(self, place: int) -> T:
        return self._items[self._places[place]]


class Joined(View[T]):
    """The items of several sequences, one after the other."""

    def __init__(self, parts: Sequence[Sequence[T]]) -> None:
        self._parts = parts
        self._ends = list(accumulate(map(len, parts)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def item(self, place: int) -> T:
        part = bisect_right(self._ends, place)
        return self._parts[part][place - (self._ends[part - 1] if part else 0)]


def places_of(count: int) -> "array[int]":
    """Return the places of `count` items in order, four bytes each."""
    return array("I", range(count))


def uids_of(items: Sequence[Item]) -> Sequence[str]:
    """Return the uid of each item, without making the items where their sequence knows them."""
    known = getattr(items, "uids", None)
    if known is not None:
        return known
    return [str(item["uid"]) for item in items]
