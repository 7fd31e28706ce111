"""Prepared pairs, read from their source on access, so that memory only holds their locations."""

from collections.abc import Mapping
from pathlib import Path

from rl_core.data.prepare.items import PairItem
from rl_core.data.read.pair_files import Pairs, open_pairs
from rl_core.data.store.pair_places import open_places
from rl_core.data.store.views import View
from rl_core.errors import DataError


class PairRows(View[PairItem]):
    """Pairs of one split: `{"uid", "prompt", "chosen", "rejected", "env_extras"}` each, and
    `margin` where the row has one.

    Args: path: `train.parquet` or `eval.parquet` of a preparation. places: path of each source by
    its digest.
    Raises: DataError when a source is missing or its content does not have its digest.
    """

    def __init__(self, path: Path | str, places: Mapping[str, str]) -> None:
        self._opened_with = (Path(path).absolute(), dict(places))
        self._places = open_places(path)
        self.uids = self._places.uids
        self._pairs: list[Pairs] = []
        for digest in self._places.sources:
            if digest not in places:
                raise DataError(
                    f"{path}: its pairs come from {digest[:12]}, which is not among "
                    f"{sorted(places)}"
                )
            self._pairs.append(open_pairs(Path(places[digest]), digest, lambda *_: None))

    def __len__(self) -> int:
        return len(self.uids)

    def item(self, place: int) -> PairItem:
        pairs, row = self._pairs[self._places.source_N[place]], int(self._places.row_N[place])
        pair = pairs[row]
        item: PairItem = {
            "uid": self.uids.item(place),
            "prompt": pair.prompt,
            "chosen": pair.chosen,
            "rejected": pair.rejected,
            "env_extras": {"data_source": pairs.subset_of(row), "images": list(pair.images)},
        }
        if pair.margin:
            item["margin"] = pair.margin
        return item

    def __reduce__(self) -> tuple[type["PairRows"], tuple[Path, dict[str, str]]]:
        return PairRows, self._opened_with
