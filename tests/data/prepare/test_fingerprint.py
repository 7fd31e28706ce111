"""Properties of file identities and run hashes."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rl_core.data.prepare import fingerprint as module
from rl_core.data.prepare.fingerprint import explain_change, file_parts, fingerprint, run_hash
from rl_core.errors import DataError


def test_digest_follows_content_even_when_size_and_mtime_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one")
    first = fingerprint(file, tmp_path / "memo")
    file.write_text("two")
    os.utime(file, ns=(first.mtime_ns, first.mtime_ns))
    second = fingerprint(file, tmp_path / "memo")
    assert first.sha256 == hashlib.sha256(b"one").hexdigest()
    assert second.sha256 == hashlib.sha256(b"two").hexdigest()


def test_a_copy_with_the_same_size_and_time_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `cp -p` and `rsync -t` do to a file whose digest is remembered: only ctime shows it."""
    monkeypatch.setattr(module, "SETTLE_NS", -(10**12))
    file, other = tmp_path / "a.txt", tmp_path / "other.txt"
    file.write_text("one")
    first = fingerprint(file, tmp_path / "memo")
    assert list((tmp_path / "memo").iterdir()), "nothing was remembered"
    other.write_text("two")
    os.utime(other, ns=(first.mtime_ns, first.mtime_ns))
    subprocess.run(["cp", "-p", other, file], check=True)
    second = fingerprint(file, tmp_path / "memo")
    assert (second.num_bytes, second.mtime_ns) == (first.num_bytes, first.mtime_ns)
    assert second.sha256 == hashlib.sha256(b"two").hexdigest()


def test_unchanged_file_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SETTLE_NS", -(10**12))
    file = tmp_path / "a.txt"
    file.write_text("one")
    fingerprint(file, tmp_path / "memo")
    (memo,) = (tmp_path / "memo").iterdir()
    memo.write_text(json.dumps({**json.loads(memo.read_text()), "sha256": "0" * 64}))
    assert fingerprint(file, tmp_path / "memo").sha256 == "0" * 64
    memo.write_text("{damaged")
    assert fingerprint(file, tmp_path / "memo").sha256 == hashlib.sha256(b"one").hexdigest()


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nope\.txt: no such file"):
        fingerprint(tmp_path / "nope.txt", tmp_path)


def test_run_hash_ignores_order_and_sees_every_value() -> None:
    assert run_hash({"a": "1", "b": "2"}) == run_hash({"b": "2", "a": "1"})
    assert len({run_hash({"a": "1"}), run_hash({"a": "2"}), run_hash({"b": "1"})}) == 3


def test_files_of_one_name_stay_apart(tmp_path: Path) -> None:
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.txt").write_text(folder)
    x, y = (fingerprint(tmp_path / folder / "a.txt", tmp_path / "memo") for folder in ("x", "y"))
    assert run_hash(file_parts({"train": [x], "eval": [y]})) != run_hash(
        file_parts({"train": [y], "eval": [x]})
    )


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ({"train.jsonl": "0" * 64}, {"train.jsonl": "1" * 64}, "train.jsonl changed"),
        ({"n": "512"}, {"n": "256"}, "n changed from 512 to 256"),
        ({"a": "1"}, {"b": "1"}, "a is no longer used, b was added"),
        ({"a": "1"}, {"a": "1"}, "nothing changed"),
    ],
)
def test_change_is_explained(old: dict[str, str], new: dict[str, str], said: str) -> None:
    assert explain_change(old, new) == said


def test_planning_modules_import_no_heavy_library() -> None:
    code = (
        "import sys, rl_core.data, rl_core.data.prepare.fingerprint, "
        "rl_core.data.prepare.prompts, rl_core.builtin.data.reasoning_problems, "
        "rl_core.data.check.files, rl_core.data.order.prompt_source\nheavy = {'pandas', "
        "'pandera', 'numpy', 'pyarrow', 'torch', 'transformers', 'reasoning_gym'}\nsys.exit(', "
        "'.join(heavy & set(sys.modules)) or 0)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")
