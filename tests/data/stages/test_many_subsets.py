"""Subsets whose annotations lie in one archive are found by the ends of their paths, and the
archive is opened once for all of them."""

import json
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rl_core.data.order.preference_dataset import PreferenceDataset
from rl_core.data.stages import annotations
from rl_core.errors import DataError
from schemas.receipts import PrepReceipt

Prepare = Callable[..., PrepReceipt]
NUM_SUBSETS = 12


@pytest.fixture
def raw(tmp_path: Path, png: bytes) -> Path:
    """Subsets whose files have one name, each in its folder, over two archives and a folder."""
    raw = tmp_path / "raw"
    (raw / "annotations" / "deep" / "s0").mkdir(parents=True)
    with zipfile.ZipFile(raw / "images.zip", "w") as images:
        images.writestr("images/s/a.png", png)
    meta = {}
    with (
        zipfile.ZipFile(raw / "annotations-1.zip", "w") as one,
        zipfile.ZipFile(raw / "annotations-2.zip", "w") as two,
    ):
        for number in range(NUM_SUBSETS):
            row = {"image": "a.png", "question": f"{number}?", "chosen": "x", "rejected": "y"}
            text, name = json.dumps(row) + "\n", f"deep/s{number}/rows.jsonl"
            if number == 0:
                (raw / "annotations" / name).write_text(text)
            else:
                (two if number % 3 else one).writestr(f"annotations/{name}", text)
            meta[f"s{number}"] = {
                "root": "images/s",
                "annotation": f"/elsewhere/{name}",
                "length": 1,
            }
    (raw / "meta.json").write_text(json.dumps(meta))
    return raw


def test_each_subset_gets_its_rows_and_an_archive_is_opened_once(
    raw: Path, prepare: Prepare, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    real = annotations.open_archive

    @contextmanager
    def counting(path: Path) -> Iterator[zipfile.ZipFile]:
        opened.append(path.name)
        with real(path) as archive:
            yield archive

    monkeypatch.setattr(annotations, "open_archive", counting)
    receipt = prepare("mpo", "num_workers=1", raw=raw)
    pairs = PreferenceDataset(receipt.output)
    questions = [(pairs.subset_of(at), pair.question) for at, pair in enumerate(pairs)]
    assert questions == sorted((f"s{number}", f"{number}?") for number in range(NUM_SUBSETS))
    assert sorted(opened) == ["annotations-1.zip", "annotations-2.zip"]


def test_a_damaged_archive_is_named(raw: Path, prepare: Prepare) -> None:
    path = raw / "annotations-2.zip"
    content = bytearray(path.read_bytes())
    at = content.index(b'"question"')
    content[at : at + 3] = b"???"
    path.write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"annotations-2\.zip: a damaged or truncated zip archive"):
        prepare("mpo", raw=raw)


def test_two_files_that_fit_equally_well_are_refused(raw: Path, prepare: Prepare) -> None:
    for folder in ("one", "two"):
        place = raw / "annotations" / folder / "s1"
        place.mkdir(parents=True)
        (place / "rows.jsonl").write_text("{}\n")
    meta = json.loads((raw / "meta.json").read_text())
    meta["s1"]["annotation"] = "s1/rows.jsonl"
    (raw / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(DataError, match=r"subset 's1': .* both fit 's1/rows\.jsonl'; rename one"):
        prepare("mpo", raw=raw)
