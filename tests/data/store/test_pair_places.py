"""Places of pairs: written group by group, read as a few numbers, and opened in other processes."""

import json
import pickle
from hashlib import sha256
from pathlib import Path

import pytest

from rl_core.data.order.pair_rows import PairRows
from rl_core.data.store import pair_places
from rl_core.data.store.pair_places import PlaceWriter, open_places
from rl_core.errors import DataError


def test_places_come_back_in_order_across_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair_places, "ROWS_PER_GROUP", 3)
    written = [(f"u{row}", f"source {row // 4 % 2}", row * 2**33) for row in range(20)]
    with PlaceWriter(tmp_path / "train.parquet") as writer:
        for one in written:
            writer.write(*one)
    places = open_places(tmp_path / "train.parquet")
    sources = [places.sources[at] for at in places.source_N]
    assert writer.num_rows == 20 and places.sources == ["source 0", "source 1"]
    assert list(zip(places.uids, sources, places.row_N.tolist(), strict=True)) == written


def test_no_pair_is_a_file_without_rows(tmp_path: Path) -> None:
    with PlaceWriter(tmp_path / "train.parquet"):
        pass
    assert len(open_places(tmp_path / "train.parquet").uids) == 0
    with pytest.raises(DataError, match="no such file; expected prepared pairs"):
        open_places(tmp_path / "eval.parquet")


def test_pairs_are_read_where_they_lie_and_sent_as_their_place(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    rows = [{"question": f"{n}?", "chosen": "yes é", "rejected": f"no {n}"} for n in range(9)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    digest = sha256(file.read_bytes()).hexdigest()
    with PlaceWriter(tmp_path / "train.parquet") as writer:
        for row in (7, 2, 5):
            writer.write(f"u{row}", digest, row)
    pairs = PairRows(tmp_path / "train.parquet", {digest: str(file)})
    assert [(one["uid"], one["rejected"]) for one in pairs] == [
        ("u7", "no 7"),
        ("u2", "no 2"),
        ("u5", "no 5"),
    ]
    assert pairs[-1] == pairs[2] and pairs[:2] == [pairs[0], pairs[1]]
    sent = pickle.dumps(pairs)
    assert len(sent) < 1000 and pickle.loads(sent) == pairs
