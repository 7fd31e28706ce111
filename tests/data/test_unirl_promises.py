"""Every promise of UniRL's data preparation page, on its own examples."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from rl_core.data import DefaultDataSource, MultimodalRLDataSource
from rl_core.data.check.files import check_files
from rl_core.data.check.parts import CheckSettings
from rl_core.data.order.media_source import read_media_prompts
from rl_core.errors import DataError
from schemas.rows.contract import SchemaName
from schemas.rows.media_checks import MediaRef, load_image
from schemas.rows.media_prompts import LEGACY_FIELDS, MediaPrompt

MINIMAL = [
    {"prompt": "A watercolor landscape with snowy mountains at sunrise."},
    {"prompt": "A cinematic portrait of a robot reading under warm light."},
]
TXT = """A drone shot flying over a misty pine forest at dawn.
Time-lapse of clouds rolling over a desert canyon.
"""
CONDITION = {"modality": "image", "role": "condition", "uri": "frames/scene_01.png"}
ANIMATE = {"prompt": "Animate this scene with gentle falling snow.", "media_refs": [CONDITION]}


def write(path: Path, content: Any) -> Path:
    if path.suffix == ".jsonl":
        content = "".join(json.dumps(row) + "\n" for row in content)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def texts(path: Path, **options: Any) -> list[str]:
    return [prompt.prompt for prompt in read_media_prompts(path, **options)]


def report(path: Path, folder: Path, **options: Any):
    settings = CheckSettings({}, **options)
    return check_files([path], settings, rejects_dir=folder / "rejects", memo_dir=folder / "memo")


def test_txt_is_one_prompt_per_nonempty_line(tmp_path: Path) -> None:
    assert texts(write(tmp_path / "train.txt", "\n" + TXT + "\n\n")) == TXT.splitlines()


def test_jsonl_is_one_object_per_nonempty_line(tmp_path: Path) -> None:
    assert texts(write(tmp_path / "a.jsonl", MINIMAL)) == [row["prompt"] for row in MINIMAL]


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (MINIMAL, [row["prompt"] for row in MINIMAL]),
        (["one", "two"], ["one", "two"]),
        (["one", {"caption": "two"}], ["one", "two"]),
        ({"prompts": ["one", {"prompt": "two"}]}, ["one", "two"]),
        ({"caption": "one"}, ["one"]),
        ({"caption": ["one", "two"]}, ["one", "two"]),
        ({"prompt": "one", "style": "x"}, ["one"]),
        ({"text": "one"}, ["one"]),
        ({"text": ["one", "two"]}, ["one", "two"]),
    ],
)
def test_json_is_a_list_or_a_dict_with_prompts_caption_or_the_prompt_key(
    document: Any, expected: list[str], tmp_path: Path
) -> None:
    assert texts(write(tmp_path / "a.json", document), prompt_key="text") == expected


def test_any_other_extension_raises_and_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(
        DataError,
        match=r"unknown extension '\.yaml'; expected one of \.txt, \.jsonl, \.json, \.parquet",
    ):
        texts(write(tmp_path / "a.yaml", "x"))


def test_caption_stands_for_prompt_and_text_is_required(tmp_path: Path) -> None:
    assert texts(write(tmp_path / "a.jsonl", [{"caption": "one"}])) == ["one"]
    for row in ({"prompt": " "}, {"prompt": 3}, {"metadata": {}}):
        with pytest.raises(DataError, match=r"a\.jsonl:1 field prompt: (missing|not a text)"):
            texts(write(tmp_path / "a.jsonl", [row]))


def test_prompt_id_defaults_to_filename_and_index_of_accepted_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "prompts.txt", "one\n\ntwo\n")
    assert [prompt.prompt_id for prompt in read_media_prompts(path)] == [
        "prompts.txt:0",
        "prompts.txt:1",
    ]
    given = write(tmp_path / "a.jsonl", [{"prompt": "x", "prompt_id": "mine"}, {"prompt": "y"}])
    assert [prompt.prompt_id for prompt in read_media_prompts(given)] == ["mine", "a.jsonl:1"]


def test_repeated_prompt_id_is_refused_since_groups_would_merge(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl", [{"prompt": "x", "prompt_id": "1"}, {"prompt": "y", "prompt_id": 1}]
    )
    with pytest.raises(
        DataError, match=r"a\.jsonl:2 field prompt_id: repeated id, got '1'; .* row 1 has this one"
    ):
        texts(path)
    found = report(path, tmp_path)
    assert (found.rejected_by_reason, found.examples[0].row) == ({"repeated id": 1}, 2)


def test_extra_keys_fold_into_metadata_only_when_it_is_absent(tmp_path: Path) -> None:
    rows = [
        {"prompt": "x", "style": "oil", "prompt_id": "a", "media": []},
        {"prompt": "x", "style": "oil", "metadata": {"seed": 1}},
    ]
    read = list(read_media_prompts(write(tmp_path / "a.jsonl", rows)))
    assert [prompt.metadata for prompt in read] == [{"style": "oil"}, {"seed": 1}]


def test_a_row_has_no_seed_and_no_negative_prompt_of_its_own(tmp_path: Path) -> None:
    row = {"prompt": "x", "negative_prompt": "blurred", "seed": 3, "guidance_scale": 9}
    (prompt,) = read_media_prompts(write(tmp_path / "a.jsonl", [row]))
    assert prompt == MediaPrompt("x", "a.jsonl:0", {key: row[key] for key in list(row)[1:]})
    assert set(vars(prompt)) == {"prompt", "prompt_id", "metadata", "media_refs"}


@pytest.mark.parametrize("name", LEGACY_FIELDS)
def test_legacy_embedding_field_is_a_hard_error(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"prompt": "x", name: "embeds.pt"}])
    with pytest.raises(DataError, match=f"field {name}: precomputed embeddings are refused"):
        texts(path)
    assert report(path, tmp_path).num_rejected == 1


def test_relative_uri_resolves_against_the_datasets_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "frames").mkdir()
    Image.new("RGB", (4, 4), (9, 8, 7)).save(tmp_path / "frames" / "scene_01.png")
    (tmp_path / "rows").mkdir()
    above = {**ANIMATE, "media_refs": [CONDITION | {"uri": "../frames/scene_01.png"}]}
    path = write(tmp_path / "a.jsonl", [ANIMATE])
    monkeypatch.chdir(tmp_path.parent)
    (prompt,) = read_media_prompts(path)
    assert prompt.media_refs == (
        MediaRef("image", "condition", str(tmp_path / "frames" / "scene_01.png")),
    )
    elsewhere = write(tmp_path / "rows" / "b.jsonl", [above])
    (other,) = read_media_prompts(elsewhere)
    assert report(elsewhere, tmp_path).num_accepted == 1
    assert load_image(other.media_refs[0].uri).getpixel((0, 0)) == (9, 8, 7)
    assert load_image(prompt.media_refs[0].uri).getpixel((0, 0)) == (9, 8, 7)
    assert report(path, tmp_path).num_accepted == 1


def test_an_unknown_key_of_a_reference_is_refused(tmp_path: Path) -> None:
    row = {**ANIMATE, "media_refs": [CONDITION | {"weight": 2}]}
    (problem,) = report(write(tmp_path / "a.jsonl", [row]), tmp_path).examples
    assert (problem.field, problem.reason) == ("media_refs[0].weight", "unknown key")
    assert problem.expected == "modality, role, uri"


@pytest.mark.parametrize(
    "uri",
    [
        "/abs/a.png",
        "http://h/a.png",
        "https://h/a.png",
        "HTTPS://h/a.png",
        "s3://bucket/a.png",
        "gs://bucket/a.png",
    ],
)
def test_absolute_paths_and_remote_uris_pass_through_unchanged(uri: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"prompt": "x", "media": [{**CONDITION, "uri": uri}]}])
    (prompt,) = read_media_prompts(path)
    assert prompt.media_refs[0].uri == uri


@pytest.mark.parametrize(
    ("modality", "role"),
    [("video", "condition"), ("image", "reference"), ("image", "mask"), ("audio", "condition")],
)
def test_other_modality_and_role_pairs_raise_not_implemented_by_name(
    modality: str, role: str, tmp_path: Path
) -> None:
    path = write(
        tmp_path / "a.jsonl",
        [{"prompt": "x", "media_refs": [{**CONDITION, "modality": modality, "role": role}]}],
    )
    with pytest.raises(
        NotImplementedError, match=rf"a\.jsonl:1 .*modality='{modality}', role='{role}'"
    ):
        texts(path)
    assert report(path, tmp_path).num_rejected == 1


def test_exactly_one_condition_image_per_prompt(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"prompt": "x", "media_refs": [CONDITION, CONDITION]}])
    with pytest.raises(NotImplementedError, match="exactly one condition image per prompt"):
        texts(path)


def test_prompts_per_rollout_are_distinct(tmp_path: Path) -> None:
    source = MultimodalRLDataSource(
        write(tmp_path / "a.txt", "a\nb\nc\nd\ne\n"), prompts_per_rollout=2
    )
    batch = source.next_batch()
    assert len({prompt.prompt_id for prompt in batch}) == 2


def test_multimodal_source_shuffles_drops_the_last_partial_batch_and_resumes(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "a.txt", "".join(f"{i}\n" for i in range(7)))

    def source() -> MultimodalRLDataSource:
        return MultimodalRLDataSource(path, prompts_per_rollout=2, seed=3)

    def drawn(one: MultimodalRLDataSource, num: int) -> list[list[str]]:
        return [[prompt.prompt for prompt in one.next_batch()] for _ in range(num)]

    whole = drawn(source(), 9)
    assert len({text for batch in whole[:3] for text in batch}) == 6
    assert whole[:3] != [["0", "1"], ["2", "3"], ["4", "5"]]
    for cut in range(9):
        first, second = source(), source()
        drawn(first, cut)
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert drawn(second, 9 - cut) == whole[cut:]


def test_default_source_ignores_its_path_cycles_and_resumes() -> None:
    source = DefaultDataSource("no-such-file.json", prompts_per_rollout=4)
    batches = [source.next_batch() for _ in range(5)]
    assert all(isinstance(prompt, MediaPrompt) for batch in batches for prompt in batch)
    assert batches[0] == batches[4] == DefaultDataSource(prompts_per_rollout=4).next_batch()
    again = DefaultDataSource(prompts_per_rollout=4)
    again.load_state_dict(source.state_dict())
    assert again.next_batch() == source.next_batch()


def test_recipe_interpolates_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rl_core.runs.recipes import load_recipe

    monkeypatch.setenv("DATA_PATH", str(tmp_path / "prompts.json"))
    monkeypatch.delenv("EVAL_DATA_PATH", raising=False)
    recipe = tmp_path / "r.yaml"
    recipe.write_text(
        "name: r\nmodel: {path: x}\ndata: {train: ['${oc.env:DATA_PATH,none.json}'], eval: "
        "['${oc.env:EVAL_DATA_PATH,held-out.json}']}\n"
    )
    data = load_recipe(str(recipe)).data
    assert (data.train, data.eval) == ([str(tmp_path / "prompts.json")], ["held-out.json"])


SCALE = sorted(
    path.stem
    for path in (Path(__file__).parents[2] / "deployments" / "recipes" / "scale").glob("*.yaml")
    if "oc.env:EVAL_DATA_PATH" in path.read_text()
)


@pytest.mark.parametrize("name", SCALE)
def test_shipped_recipes_read_the_files_that_the_environment_names(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rl_core.runs.recipes import load_recipe

    monkeypatch.setenv("DATA_PATH", "mine.json")
    monkeypatch.setenv("EVAL_DATA_PATH", "held-out.json")
    data = load_recipe(f"scale/{name}").data
    assert (data.train, data.eval) == (["mine.json"], ["held-out.json"])


def test_most_recipes_for_real_models_read_such_files() -> None:
    assert len(SCALE) >= 7


def test_text_only_source_imports_no_vision_package(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", TXT)
    code = (
        "import sys; from rl_core.data import MultimodalRLDataSource; "
        f"MultimodalRLDataSource({str(path)!r}, 1).next_batch(); print([name for name in ('PIL', "
        "'torch', 'fsspec', 'pyarrow', 'datasets') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr


def test_schema_of_a_media_file_is_recognised(tmp_path: Path) -> None:
    assert set(report(write(tmp_path / "a.txt", TXT), tmp_path).schemas.values()) == {
        SchemaName.MEDIA
    }
