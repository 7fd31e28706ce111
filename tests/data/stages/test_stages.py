"""Each stage on the fixture: what is published, and that training's loader reads every row of
it."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rl_core.data import read_rows
from rl_core.data.order.media_source import MultimodalRLDataSource
from rl_core.data.order.preference_dataset import PreferenceDataset
from rl_core.data.order.vision_dataset import VisionDataset
from rl_core.data.stages.published import split_files
from rl_core.data.store.publish import parse_sentinel
from rl_core.errors import DataError
from schemas.receipts import PrepReceipt
from schemas.rows.media_checks import load_image
from tests.data.stages.conftest import STAGES, content

Prepare = Callable[..., PrepReceipt]


def test_vision_layout_is_the_documented_one(prepare: Prepare, raw_dirs: dict[str, Path]) -> None:
    root = Path(prepare("vision").output)
    assert {path.name for path in root.iterdir()} == {
        "MMPR-Tiny",
        "mmpr_tiny.parquet",
        "mmpr_tiny_preview.jsonl",
        "prepare_mmpr_tiny_for_vision_rl_summary.json",
        ".mmpr_ready",
    }
    with zipfile.ZipFile(raw_dirs["vision"] / "images.zip") as archive:
        assert all(
            (root / "MMPR-Tiny" / member).is_file()
            for member in archive.namelist()
            if member[-1] != "/"
        )
    copied = (root / "mmpr_tiny.parquet").read_bytes()
    assert copied == (raw_dirs["vision"] / "mmpr_tiny.parquet").read_bytes(), (
        "source records, copied through"
    )


def test_mpo_layout_is_the_documented_one(prepare: Prepare, tmp_path: Path) -> None:
    root = Path(prepare("mpo").output)
    assert root == tmp_path / "mpo" / "MMPR-v1.2"
    assert {path.relative_to(root).as_posix() for path in root.iterdir()} == {
        "meta_public.json",
        "MMPR",
        "mmpr_public_preview.jsonl",
        "prepare_public_mmpr_for_mpo_summary.json",
        ".mmpr_ready",
    }
    assert (root / "MMPR" / "images" / "shapes" / "00000.png").is_file()
    preview = [
        json.loads(line) for line in (root / "mmpr_public_preview.jsonl").read_text().splitlines()
    ]
    assert [row["subset"] for row in preview] == ["colours", "colours", "shapes", "shapes"], (
        "2 rows per subset"
    )


def test_an_output_dir_called_mmpr_v1_2_is_the_cache_root_itself(
    prepare: Prepare, tmp_path: Path
) -> None:
    receipt = prepare("mpo", output=tmp_path / "data_prep" / "MMPR-v1.2")
    assert Path(receipt.output) == tmp_path / "data_prep" / "MMPR-v1.2"


def test_meta_paths_are_relative_and_petrelfs_is_gone(
    prepare: Prepare, raw_dirs: dict[str, Path]
) -> None:
    assert "/mnt/petrelfs/" in (raw_dirs["mpo"] / "meta.json").read_text()
    root = Path(prepare("mpo").output)
    text = (root / "meta_public.json").read_text()
    assert "petrelfs" not in text
    for entry in json.loads(text).values():
        assert entry["annotation"].startswith("MMPR/annotations/")
        assert (root / entry["annotation"]).is_file()
        assert (root / entry["root"]).is_dir()


def test_two_subsets_with_one_basename_do_not_share_a_file(
    prepare: Prepare, raw_dirs: dict[str, Path]
) -> None:
    raw = json.loads((raw_dirs["mpo"] / "meta.json").read_text())
    assert len({Path(entry["annotation"]).name for entry in raw.values()}) == 1
    meta = json.loads((Path(prepare("mpo").output) / "meta_public.json").read_text())
    assert {entry["annotation"] for entry in meta.values()} == {
        "MMPR/annotations/colours.jsonl",
        "MMPR/annotations/shapes.jsonl",
    }


def test_text_manifest_lists_every_shard_and_answers_stay_strings(prepare: Prepare) -> None:
    root = Path(prepare("text").output)
    manifest = json.loads((root / "manifest.json").read_text())
    on_disk = {path.relative_to(root).as_posix() for path in root.glob("*/*.jsonl")}
    assert (
        on_disk
        == {*manifest["train"], *manifest["val"]}
        == {shard["path"] for shard in manifest["shards"]}
    )
    rows = [json.loads(line) for name in on_disk for line in (root / name).read_text().splitlines()]
    assert len(rows) == 24
    assert all(isinstance(row["expected_answer"], str) for row in rows)
    assert not any("_hf_placeholder" in row for row in rows)


def test_vision_cache_is_read_row_by_row_by_its_loader(prepare: Prepare) -> None:
    receipt = prepare("vision")
    dataset = VisionDataset(receipt.output, receipt.run_hash)
    assert len(dataset) == receipt.row_stats["kept"] == 24
    upstream = pq.read_table(Path(receipt.output) / "mmpr_tiny.parquet").to_pylist()
    for row, source in zip(dataset, upstream, strict=True):
        assert row.answer == source["reward_model"]["ground_truth"]
        assert row.question == source["prompt"][0]["content"]
        assert dataset.image(row).size == (64, 64)


def test_mpo_cache_is_read_row_by_row_by_its_loader(prepare: Prepare) -> None:
    receipt = prepare("mpo")
    dataset = PreferenceDataset(receipt.artifact_path or "", receipt.run_hash)
    assert len(dataset) == receipt.row_stats["kept"] == 24
    for pair in dataset:
        assert pair.chosen != pair.rejected
        assert all(load_image(image).size == (48, 48) for image in pair.images)
    assert dataset[13] == list(dataset)[13]
    with pytest.raises(IndexError):
        dataset[24]


def test_text_cache_is_read_row_by_row_by_its_reader(prepare: Prepare) -> None:
    receipt = prepare("text")
    rows = {
        split: [
            row
            for file in split_files(Path(receipt.artifact_path or ""), split)
            for _, row in read_rows(file)
        ]
        for split in ("train", "eval")
    }
    assert (len(rows["train"]), len(rows["eval"])) == (
        receipt.row_stats["train"],
        receipt.row_stats["val"],
    )
    assert rows["eval"], "the fixture holds some rows out"
    for row in rows["train"] + rows["eval"]:
        (message,) = row["prompt"]
        numbers = [
            int(word.strip("?."))
            for word in message["content"].split()
            if word.strip("?.").isdigit()
        ]
        assert sum(numbers) == int(row["reward_spec"]["ground_truth"])


def test_diffusion_cache_is_read_row_by_row_by_its_loader(prepare: Prepare) -> None:
    receipt = prepare("diffusion")
    source = MultimodalRLDataSource(receipt.artifact_path or "", prompts_per_rollout=4, seed=1)
    prompts = [prompt for _ in range(6) for prompt in source.next_batch()]
    assert len({prompt.prompt_id for prompt in prompts}) == 24
    shown = [ref for prompt in prompts for ref in prompt.media_refs]
    assert len(shown) == 12
    assert all(load_image(ref.uri).size == (96, 96) for ref in shown)


@pytest.mark.parametrize("name", STAGES)
def test_the_same_inputs_give_the_same_bytes_anywhere(
    name: str, prepare: Prepare, tmp_path: Path
) -> None:
    first, second = prepare(name), prepare(name, output=tmp_path / "elsewhere" / name)
    assert first.run_hash == second.run_hash
    assert content(Path(first.output)) == content(Path(second.output))
    assert str(tmp_path) not in "".join(
        path.read_text() for path in Path(first.output).glob("*.json*")
    ), "no path of this machine is published"


@pytest.mark.parametrize("name", STAGES)
def test_a_reader_refuses_a_sentinel_that_does_not_match(name: str, prepare: Prepare) -> None:
    receipt = prepare(name)
    root = Path(receipt.output)
    sentinel = parse_sentinel(root, ".mmpr_ready" if name in ("mpo", "vision") else ".ready")
    assert sentinel is not None and sentinel.counts == receipt.row_stats
    assert set(sentinel.files) == set(content(root)) - {".mmpr_ready", ".ready"}
    victim = next(path for path in sentinel.files if path.endswith((".png", ".jsonl")))
    (root / victim).write_bytes(b"other")
    again = prepare(name)
    assert not again.hit and "missing or damaged" in again.explanation


@pytest.mark.parametrize(
    ("name", "loader"), [("mpo", PreferenceDataset), ("vision", VisionDataset)]
)
def test_a_loader_refuses_another_or_a_damaged_preparation(
    name: str, loader: type, prepare: Prepare
) -> None:
    receipt = prepare(name)
    with pytest.raises(
        DataError, match=r"holds preparation .*, not 000000000000; prepare it again"
    ):
        loader(receipt.output, "0" * 64)
    next(Path(receipt.output).rglob("*.png")).write_bytes(b"x")
    with pytest.raises(DataError, match=r"\.png is missing or is not what was prepared"):
        loader(receipt.output)
    (Path(receipt.output) / ".mmpr_ready").unlink()
    with pytest.raises(DataError, match=r"no readable \.mmpr_ready"):
        loader(receipt.output)
