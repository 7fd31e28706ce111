"""Properties of publishing: a folder is complete, or no reader takes it for complete."""

import errno
import os
import threading
import time
from pathlib import Path

import pytest

from rl_core.data.store.atomic import atomic_write_json, atomic_writer
from rl_core.data.store.publish import SENTINEL, Built, open_published, parse_sentinel, publish
from rl_core.errors import DataError, StorageError


def build(work: Path) -> Built:
    (work / "sub").mkdir()
    (work / "sub" / "a.txt").write_text("one")
    return Built({"rows": 1})


def full_disk(work: Path) -> Built:
    (work / "a.txt").write_text("half")
    raise OSError(errno.ENOSPC, "No space left on device")


def test_second_publication_of_the_same_hash_is_a_hit(tmp_path: Path) -> None:
    first, first_hit = publish(tmp_path / "out", "h", build)
    second, second_hit = publish(tmp_path / "out", "h", full_disk)
    assert (first_hit, second_hit) == (False, True)
    assert first == second == open_published(tmp_path / "out", SENTINEL)
    assert first.counts == {"rows": 1} and list(first.files) == ["sub/a.txt"]


@pytest.mark.parametrize("harm", ["change", "remove", "garble"])
def test_damaged_folder_is_not_complete_and_is_rebuilt(tmp_path: Path, harm: str) -> None:
    publish(tmp_path / "out", "h", build)
    victim = tmp_path / "out" / (".ready" if harm == "garble" else "sub/a.txt")
    victim.unlink() if harm == "remove" else victim.write_text("x")
    with pytest.raises(DataError, match=r"no complete preparation|is not what was prepared"):
        open_published(tmp_path / "out", SENTINEL)
    assert publish(tmp_path / "out", "h", build)[1] is False
    open_published(tmp_path / "out", SENTINEL)


def test_full_disk_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(
        StorageError, match=r"cannot write .*out: the disk is full: free some space"
    ):
        publish(tmp_path / "out", "h", full_disk)
    assert parse_sentinel(tmp_path / "out") is None
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


def test_failed_rebuild_keeps_what_was_published(tmp_path: Path) -> None:
    def refuse(_work: Path) -> Built:
        raise DataError("no rows")

    publish(tmp_path / "out", "old", build)
    with pytest.raises(DataError, match="no rows"):
        publish(tmp_path / "out", "new", refuse)
    assert open_published(tmp_path / "out", SENTINEL).run_hash == "old"


def test_leftovers_of_a_killed_build_are_removed_and_others_kept(tmp_path: Path) -> None:
    (tmp_path / ".build-out-0123abcd").mkdir()
    (tmp_path / ".build-out-b-0123abcd").mkdir()
    publish(tmp_path / "out", "h", build)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == [
        ".build-out-b-0123abcd",
        "out",
    ]


def test_concurrent_calls_build_once(tmp_path: Path) -> None:
    builds, hits = [], []

    def slow(work: Path) -> Built:
        builds.append(1)
        time.sleep(0.1)
        return build(work)

    threads = [
        threading.Thread(target=lambda: hits.append(publish(tmp_path / "out", "h", slow)[1]))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(builds), sorted(hits)) == (1, [False] + [True] * 7)


def test_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    atomic_write_json(target, {"a": 1})
    before = target.read_text()
    with pytest.raises(RuntimeError), atomic_writer(target) as file:
        file.write("half")
        raise RuntimeError
    assert target.read_text() == before and os.listdir(tmp_path) == ["a.json"]


def test_unwritable_place_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write"):
        atomic_write_json(tmp_path / "file" / "a.json", {})
