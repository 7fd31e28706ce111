"""What becomes of each row: kept, or counted under its reason and named with file and row."""

import io
import json
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from rl_core.builtin.data.make_fixture import TABLE, draw, make_fixture
from rl_core.data.order.preference_dataset import PreferenceDataset
from rl_core.data.order.vision_dataset import Refusal, RowRefused, VisionDataset, vision_row
from rl_core.errors import DataError
from schemas.receipts import PrepReceipt
from tests.data.stages.conftest import content

Prepare = Callable[..., PrepReceipt]
DROP = ("on_invalid=drop", "max_bad_fraction=1")


def png(side: int = 16, colour: str = "red") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (side, side), colour).save(file, "PNG")
    return file.getvalue()


def jpeg() -> bytes:
    file = io.BytesIO()
    Image.effect_noise((64, 64), 80).convert("RGB").save(file, "JPEG")
    return file.getvalue()


def write_zip(path: Path, members: dict[str, bytes | str]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, body in members.items():
            archive.writestr(name, body)


def tiny_row(**changes: Any) -> dict[str, Any]:
    row = {
        "data_source": "shapes",
        "prompt": [{"content": "<image>\nWhat is it?", "role": "user"}],
        "images": [{"bytes": None, "path": "images/good.png"}],
        "ability": "perception",
        "reward_model": {"ground_truth": "a square", "style": "rule"},
        "extra_info": {
            "answer": "a square",
            "index": 0,
            "question": "What is it?",
            "split": "train",
        },
    }
    return {**row, **changes}


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    folder = tmp_path / "own" / "raw"
    folder.mkdir(parents=True)
    return folder


def mmpr_tiny(raw: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Written by pandas, as upstream does: list columns come back as numpy arrays."""
    pd.DataFrame(list(rows)).to_parquet(raw / "mmpr_tiny.parquet")
    members = {"good.png": png(), "cut.jpg": jpeg()[:-200], "text.png": b"no image"}
    write_zip(raw / "images.zip", {f"images/{name}": body for name, body in members.items()})
    return raw


def test_numpy_list_columns_are_good_rows(raw: Path) -> None:
    mmpr_tiny(raw, [tiny_row()])
    row = pd.read_parquet(raw / "mmpr_tiny.parquet").iloc[0].to_dict()
    assert isinstance(row["prompt"], np.ndarray) and isinstance(row["images"], np.ndarray)
    found = vision_row(row, 1)
    assert (found.question, found.answer) == ("<image>\nWhat is it?", "a square")
    assert found.image == "MMPR-Tiny/images/good.png"


def test_vision_counts_every_reason_and_the_loader_agrees(raw: Path, prepare: Prepare) -> None:
    path = [{"bytes": None, "path": "images/good.png"}]
    bad = [
        tiny_row(prompt=[{"content": "Be brief.", "role": "system"}]),
        tiny_row(reward_model={"ground_truth": None, "style": "rule"}),
        tiny_row(images=[{"bytes": None, "path": "../../secret.png"}]),
        tiny_row(images=[*path, *path]),
        tiny_row(images=[{"bytes": None, "path": "images/lost.png"}]),
        tiny_row(images=[{"bytes": None, "path": "images/cut.jpg"}]),
        tiny_row(images=[{"bytes": None, "path": "images/text.png"}]),
    ]
    mmpr_tiny(raw, [tiny_row(), *bad, tiny_row(images=[{"bytes": png(), "path": None}])])
    receipt = prepare("vision", *DROP, raw=raw)
    assert receipt.row_stats == {
        "total": 9,
        "kept": 2,
        "missing_question": 1,
        "missing_answer": 1,
        "invalid_image_field": 1,
        "not_one_image": 1,
        "missing_image_file": 1,
        "unreadable_image": 2,
    }
    dataset = VisionDataset(receipt.output, receipt.run_hash)
    assert [row.row for row in dataset] == [1, 9]
    assert [dataset.image(row).size for row in dataset] == [(16, 16), (16, 16)]
    preview = (Path(receipt.output) / "mmpr_tiny_preview.jsonl").read_text().splitlines()
    assert json.loads(preview[0]) == {
        "row": 1,
        "images": ["MMPR-Tiny/images/good.png"],
        "question": "<image>\nWhat is it?",
        "answer": "a square",
        "task_name": "mmpr_tiny",
    }


def test_bad_rows_end_the_preparation_unless_dropping_is_allowed(
    raw: Path, prepare: Prepare
) -> None:
    mmpr_tiny(raw, [tiny_row(), tiny_row(images=[{"bytes": None, "path": "images/lost.png"}])])
    with pytest.raises(
        DataError,
        match=r"1 of 2 rows cannot be used; fix them[\s\S]*mmpr_tiny\.parquet:2 field images",
    ):
        prepare("vision", "on_invalid=fail", raw=raw)
    with pytest.raises(DataError, match=r"more than max_bad_fraction 0\.1 allows"):
        prepare("vision", "on_invalid=drop", "max_bad_fraction=0.1", raw=raw)
    assert prepare("vision", *DROP, raw=raw).row_stats["kept"] == 1


@pytest.mark.parametrize(
    ("upstream", "inside"),
    [
        ("images/a/b.png", "MMPR-Tiny/images/a/b.png"),
        ("MMPR-Tiny/images/b.png", "MMPR-Tiny/images/b.png"),
        ("/mnt/petrelfs/share/MMPR-Tiny/images/b.png", "MMPR-Tiny/images/b.png"),
        ("b.png", "MMPR-Tiny/images/b.png"),
    ],
)
def test_upstream_image_paths_lead_into_the_cache(upstream: str, inside: str) -> None:
    assert vision_row(tiny_row(images=[{"bytes": None, "path": upstream}]), 1).image == inside


def test_the_question_is_the_first_user_message_and_parts_are_joined() -> None:
    parts = [{"type": "image"}, {"type": "text", "text": "How many?"}]
    prompt = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": parts}]
    assert vision_row(tiny_row(prompt=prompt), 1).question == "How many?"
    with pytest.raises(RowRefused) as refused:
        vision_row(tiny_row(prompt=prompt[:1]), 1)
    assert refused.value.reason is Refusal.MISSING_QUESTION


def mmpr(raw: Path, rows: Sequence[Any], *, length: int | None = None, **entry: Any) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    (raw / "annotations").mkdir()
    (raw / "annotations" / "sub.jsonl").write_text("\n".join(lines) + "\n")
    meta = {
        "root": "MMPR/images/sub",
        "annotation": "/mnt/petrelfs/x/sub.jsonl",
        "length": length or len(rows),
    }
    (raw / "meta.json").write_text(json.dumps({"sub": {**meta, **entry}}))
    write_zip(raw / "images.zip", {"images/sub/a.png": png(), "images/sub/bad.png": b"no image"})
    return raw


PAIR = {"image": "a.png", "question": "What?", "chosen": "This.", "rejected": "That."}


def test_mpo_counts_every_reason_and_keeps_good_rows_as_written(
    raw: Path, prepare: Prepare
) -> None:
    kept = [
        '{"image":"a.png",  "question":"1","chosen":"x","rejected":"y", "n": '
        "12345678901234567890123}",
        json.dumps(PAIR),
    ]
    aliases = {
        "image": ["a.png"],
        "question": "?",
        "chosen_response": "x",
        "rejected_response": "y",
    }
    rows = [
        kept[0],
        {**PAIR, "image": None},
        {**PAIR, "question": " "},
        {**PAIR, "rejected": "This."},
        {**PAIR, "image": "lost.png"},
        {**PAIR, "image": "bad.png"},
        {**PAIR, "image": "../../../etc/passwd"},
        "{broken",
        kept[1],
        aliases,
    ]
    receipt = prepare("mpo", *DROP, raw=mmpr(raw, rows))
    assert (receipt.row_stats["total"], receipt.row_stats["kept"]) == (10, 3)
    reasons = {
        name: count for name, count in receipt.row_stats.items() if name not in ("total", "kept")
    }
    assert sum(reasons.values()) == 7
    assert {"image_missing", "missing_image_file", "unreadable_image", "unreadable_line"} <= set(
        reasons
    )
    root = Path(receipt.output)
    published = (root / "MMPR" / "annotations" / "sub.jsonl").read_text().splitlines()
    assert published == [*kept, json.dumps(aliases)]
    assert json.loads((root / "meta_public.json").read_text())["sub"]["length"] == 3
    assert [pair.chosen for pair in PreferenceDataset(root)] == ["x", "This.", "x"]


def test_a_length_that_disagrees_with_the_file_is_reported(raw: Path, prepare: Prepare) -> None:
    receipt = prepare("mpo", raw=mmpr(raw, [PAIR, PAIR], length=5))
    assert receipt.row_stats["length_mismatches"] == 1
    summary = json.loads(
        (Path(receipt.output) / "prepare_public_mmpr_for_mpo_summary.json").read_text()
    )
    assert summary["length_mismatches"] == {"sub": {"meta": 5, "file": 2}}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"annotation": None}, "subset 'sub' lacks annotation; expected root, annotation, length"),
        (
            {"annotation": "/x/other.jsonl"},
            r"subset 'sub': no file other\.jsonl; expected its annotations",
        ),
        ({"root": "MMPR/images/../../x"}, r"subset 'sub' root: '.*' climbs"),
    ],
)
def test_a_meta_entry_that_cannot_be_used_is_named(
    raw: Path, prepare: Prepare, entry: Any, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        prepare("mpo", raw=mmpr(raw, [PAIR], **entry))


def blend(
    raw: Path, rows: dict[str, list[Any]], document: Any = None, **entries: dict[str, Any]
) -> Path:
    for name, lines in rows.items():
        (raw / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    datasets = [{"name": name, "path": f"{name}.jsonl", **entries.get(name, {})} for name in rows]
    (raw / "data_blend_raw.json").write_text(json.dumps(document or {"datasets": datasets}))
    return raw


def ask(text: str, **more: Any) -> dict[str, Any]:
    return {"responses_create_params": {"input": [{"role": "user", "content": text}]}, **more}


def shards(receipt: PrepReceipt, split: str) -> list[dict[str, Any]]:
    root = Path(receipt.output)
    names = json.loads((root / "manifest.json").read_text())[split]
    return [json.loads(line) for name in names for line in (root / name).read_text().splitlines()]


def test_a_row_keeps_everything_it_came_with(raw: Path, prepare: Prepare) -> None:
    row = ask(
        "1 + 1?",
        agent_ref={"name": "math"},
        expected_answer="05",
        options=[{"A": "x"}],
        n=2**70,
        none=None,
    )
    receipt = prepare("text", "val_fraction=0", raw=blend(raw, {"one": [row]}))
    assert shards(receipt, "train") == [row]


def test_equal_prompts_never_lie_on_both_sides(raw: Path, prepare: Prepare) -> None:
    rows = [ask(f"question {i % 40}", id=i) for i in range(400)]
    receipt = prepare(
        "text", "val_fraction=0.3", raw=blend(raw, {"a": rows[:200], "b": rows[200:]})
    )
    sides = {
        split: {
            row["responses_create_params"]["input"][0]["content"] for row in shards(receipt, split)
        }
        for split in ("train", "val")
    }
    assert sides["train"] and sides["val"] and not sides["train"] & sides["val"]
    assert receipt.row_stats["train"] + receipt.row_stats["val"] == 400


def test_another_seed_holds_out_other_prompts(raw: Path, prepare: Prepare) -> None:
    raw = blend(raw, {"a": [ask(f"question {i}") for i in range(60)]})
    first, second = (
        shards(prepare("text", "val_fraction=0.3", f"seed={seed}", raw=raw), "val")
        for seed in (1, 2)
    )
    assert first != second


def test_what_a_blend_holds_out_by_name_leaves_the_training_rows(
    raw: Path, prepare: Prepare
) -> None:
    document = {
        "train": {"datasets": [{"name": "t", "path": "t.jsonl"}]},
        "val": {"datasets": [{"name": "v", "path": "v.jsonl"}]},
    }
    raw = blend(raw, {"t": [ask("a"), ask("b"), ask("c")], "v": [ask("b", id=1)]}, document)
    receipt = prepare("text", *DROP, raw=raw)
    assert shards(receipt, "val") == [ask("b", id=1)]
    assert shards(receipt, "train") == [ask("a"), ask("c")]
    assert receipt.row_stats["also_held_out"] == 1


def test_what_every_input_holds_out_leaves_the_training_rows(raw: Path, prepare: Prepare) -> None:
    """Each of three inputs holds something out, which another one asks as well."""
    names = ["u", "v", "w"]
    document = {
        "train": {"datasets": [{"name": "t", "path": "t.jsonl"}]},
        "val": {"datasets": [{"name": name, "path": f"{name}.jsonl"} for name in names]},
    }
    asked = {name: [ask(name)] for name in names}
    raw = blend(raw, {"t": [ask(name) for name in [*names, "x"]], **asked}, document)
    receipt = prepare("text", *DROP, raw=raw)
    assert shards(receipt, "val") == [ask(name) for name in names]
    assert shards(receipt, "train") == [ask("x")]
    assert receipt.row_stats["also_held_out"] == 3


def test_weights_are_passes(raw: Path, prepare: Prepare) -> None:
    rows = {name: [ask(f"{name} {i}") for i in range(400)] for name in ("half", "once", "twice")}
    raw = blend(raw, rows, half={"weight": 0.5}, twice={"weight": 2})
    names = [
        row["responses_create_params"]["input"][0]["content"].split()[0]
        for row in shards(prepare("text", "val_fraction=0", raw=raw), "train")
    ]
    assert (names.count("once"), names.count("twice")) == (400, 800)
    assert 150 < names.count("half") < 250


def table(raw: Path, answers: Sequence[Any]) -> None:
    (raw / TABLE[1]).mkdir(parents=True)
    rows = [
        {"prompt": [{"role": "user", "content": f"q{i}"}], "reward_model": {"ground_truth": a}}
        for i, a in enumerate(answers)
    ]
    (raw / TABLE[1] / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def point(row: Any, template: Any = None, **more: Any) -> dict[str, Any]:
    return {
        "dataset": TABLE[0],
        "_hf_placeholder": {"row": row, "question_template": template},
        **more,
    }


def test_placeholders_are_resolved_with_either_template_and_answers_stay_strings(
    raw: Path, prepare: Prepare
) -> None:
    table(raw, ["007", 5, ["1/2", "0.5"]])
    rows = [
        point(0, {"prefix": "<", "suffix": ">"}, id=1),
        point(1, "Say: {question}!"),
        point(2),
        ask("x", _hf_placeholder=None),
    ]
    found = shards(prepare("text", "val_fraction=0", raw=blend(raw, {"p": rows})), "train")
    assert [(row.get("question"), row.get("expected_answer")) for row in found] == [
        ("<q0>", "007"), ("Say: q1!", "5"), ("q2", '["1/2", "0.5"]'), (None, None),
    ]  # fmt: skip
    assert found[0]["id"] == 1 and "_hf_placeholder" not in found[0]
    assert found[0]["responses_create_params"]["input"] == [{"role": "user", "content": "<q0>"}]


def test_unresolved_rows_beyond_the_bound_end_the_stage(raw: Path, prepare: Prepare) -> None:
    table(raw, ["1"])
    blend(raw, {"p": [point(0), point(7), point(0, "no place for it"), point("x")]})
    with pytest.raises(
        DataError,
        match=r"3 of 4 placeholder rows lead nowhere, more than max_unresolved_fraction 0\.5",
    ):
        prepare("text", "max_unresolved_fraction=0.5", "val_fraction=0", *DROP, raw=raw)
    receipt = prepare("text", "max_unresolved_fraction=0.75", "val_fraction=0", *DROP, raw=raw)
    assert receipt.row_stats == {
        "total": 4,
        "kept": 1,
        "unresolved_placeholder": 3,
        "train": 1,
        "val": 0,
    }


def test_a_blend_key_nobody_knows_is_refused(raw: Path, prepare: Prepare) -> None:
    blend(raw, {"a": [ask("x")]}, a={"wieght": 2})
    with pytest.raises(
        DataError, match=r"datasets\.0\.wieght: unknown key \(did you mean 'weight'\?\)"
    ):
        prepare("text", raw=raw)


def test_a_text_field_becomes_the_prompt(raw: Path, prepare: Prepare) -> None:
    raw = blend(raw, {"a": [{"problem": "1 + 1?", "answer": "2"}]}, a={"text_field": "problem"})
    (row,) = shards(prepare("text", "val_fraction=0", raw=raw), "train")
    assert row == {"problem": "1 + 1?", "answer": "2", **ask("1 + 1?")}


def test_condition_images_are_fitted_and_stored_once_by_content(
    raw: Path, prepare: Prepare
) -> None:
    (raw / "frames").mkdir()
    (raw / "frames" / "wide.png").write_bytes(png(300))
    (raw / "frames" / "copy.png").write_bytes(png(300))
    (raw / "frames" / "text.png").write_bytes(b"no image")
    refs = [
        [{"modality": "image", "role": "condition", "uri": uri}]
        for uri in ("frames/wide.png", "frames/copy.png")
    ]
    rows = [{"prompt": f"move {i}", "media_refs": ref} for i, ref in enumerate(refs)]
    rows += [{"prompt": "far", "media_refs": [{**refs[0][0], "uri": "https://example.org/x.png"}]}]
    rows += [{"prompt": "bad", "media_refs": [{**refs[0][0], "uri": "frames/text.png"}]}]
    rows += [
        {"prompt": "lost", "media_refs": [{**refs[0][0], "uri": "frames/lost.png"}]},
        {"prompt_embeds": [1]},
    ]
    (raw / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    receipt = prepare("diffusion", "max_image_side=100", "side_multiple=16", *DROP, raw=raw)
    root = Path(receipt.output)
    published = [json.loads(line) for line in (root / "prompts.jsonl").read_text().splitlines()]
    uris = [row["media_refs"][0]["uri"] for row in published]
    assert uris[0] == uris[1] and uris[2] == "https://example.org/x.png"
    with Image.open(root / uris[0]) as image:
        assert image.size == (96, 96)
    assert content(root)[uris[0]] == Path(uris[0]).stem, "the name is the digest"
    assert (receipt.row_stats["kept"], receipt.row_stats["unusable_image"]) == (3, 2)


def test_the_fixture_is_the_same_on_every_run(tmp_path: Path) -> None:
    for name in ("one", "two"):
        make_fixture(tmp_path / name, num_rows=6, seed=3)
    make_fixture(tmp_path / "other", num_rows=6, seed=4)
    assert content(tmp_path / "one") == content(tmp_path / "two") != content(tmp_path / "other")
    with pytest.raises(DataError, match="is not empty; name a new folder"):
        make_fixture(tmp_path / "one")


def test_a_drawn_picture_shows_its_colour() -> None:
    import random

    picture = draw(random.Random(1))
    with Image.open(io.BytesIO(picture.png)) as image:
        colours = {colour for _, colour in image.getcolors(4096) or []}
    assert len(colours) == 2
