"""Prepared pairs, read from their source on access, so that memory only holds their locations."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import overload

from rl_core.data.read.pair_files import Pairs, open_pairs
from rl_core.errors import DataError

Item = dict[str, object]


class PairRows(Sequence[Item]):
    """Pairs of one split: `{"uid", "prompt", "chosen", "rejected", "env_extras"}` each.

    Args: path: `train.parquet` or `eval.parquet` of a preparation. places: path of each source by
    its digest.
    Raises: DataError when a source is missing or its content does not have its digest.
    """

    def __init__(self, path: Path | str, places: Mapping[str, str]) -> None:
        import pyarrow.parquet as pq

        if not Path(path).is_file():
            raise DataError(f"{path}: no such file; expected prepared pairs")
        table = pq.read_table(path, columns=["uid", "source", "row"])
        self.uids: list[str] = table.column("uid").to_pylist()
        self._sources = table.column("source").dictionary_encode().combine_chunks()
        self._rows = table.column("row").to_numpy()
        digests: list[str] = self._sources.dictionary.to_pylist()
        self._pairs: list[Pairs] = []
        for digest in digests:
            if digest not in places:
                raise DataError(
                    f"{path}: its pairs come from {digest[:12]}, which is not among "
                    f"{sorted(places)}"
                )
            self._pairs.append(open_pairs(Path(places[digest]), digest, lambda *_: None))
        self._indices = self._sources.indices.to_numpy()

    def __len__(self) -> int:
        return len(self.uids)

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | list[Item]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        pairs, row = self._pairs[self._indices[index]], int(self._rows[index])
        pair = pairs[row]
        return {
            "uid": self.uids[index],
            "prompt": pair.prompt,
            "chosen": pair.chosen,
            "rejected": pair.rejected,
            "env_extras": {"data_source": pairs.subset_of(row), "images": list(pair.images)},
        }

    def __iter__(self) -> Iterator[Item]:
        return (self[index] for index in range(len(self)))
