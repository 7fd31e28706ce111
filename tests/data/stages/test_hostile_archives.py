"""Archives from elsewhere: refused by name before a byte is written, or unpacked exactly."""

import hashlib
import random
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from rl_core.builtin.data.picture_rows import ARCHIVE_TIME
from rl_core.data.prepare.workers import run_here, run_in_processes
from rl_core.data.read.archives import ArchiveLimits, extract, list_members
from rl_core.data.read.unpack import Extraction, ImageCheck, unpack_share
from rl_core.errors import DataError

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def make(*members: tuple[str | zipfile.ZipInfo, bytes]) -> Path:
        path = tmp_path / "images.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members:
                archive.writestr(name, content)
        return path

    return make


def special(name: str, kind: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, ARCHIVE_TIME)
    info.create_system, info.external_attr = 3, (kind | 0o777) << 16
    return info


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("/etc/passwd", "is an absolute path"),
        ("C:\\windows\\x.png", "is an absolute path"),
        ("images/../../../x.png", "climbs out of the archive"),
        ("images\\..\\..\\x.png", "climbs out of the archive"),
        (special("images/link.png", stat.S_IFLNK), "is a link"),
        (special("images/pipe.png", stat.S_IFIFO), "is not an ordinary file"),
        ("images/" + "x" * 300 + ".png", "has a name of more than 255 bytes"),
    ],
    ids=["absolute", "drive", "climbing", "climbing-backslash", "symlink", "fifo", "long-name"],
)
def test_hostile_member_is_refused_by_name(
    write: Write, name: str | zipfile.ZipInfo, reason: str
) -> None:
    path = write(("images/good.png", b"x"), (name, b"target"))
    with pytest.raises(
        DataError, match=rf"images\.zip: member '.*' {reason}; the archive is refused"
    ):
        list_members(path, ArchiveLimits(), "/".join)


@pytest.mark.parametrize(
    "names",
    [
        ("images/A.png", "images/a.png"),
        ("images/\u00e9.png", "images/e\u0301.png"),
        ("a/b", "a/b/c"),
    ],
)
def test_names_that_clash_are_refused_both_named(write: Write, names: tuple[str, str]) -> None:
    with pytest.raises(DataError, match="clash") as caught:
        list_members(write((names[0], b"1"), (names[1], b"2")), ArchiveLimits(), "/".join)
    assert all(repr(name) in str(caught.value) for name in names)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_one_name_twice_is_refused(write: Write) -> None:
    with pytest.raises(DataError, match="members 'a' and 'a' clash"):
        list_members(write(("a", b"1"), ("a", b"2")), ArchiveLimits(), "/".join)


def test_a_bomb_is_refused_before_it_is_unpacked(write: Write) -> None:
    path = write(("images/bomb.png", b"\0" * (32 * 2**20)))
    assert path.stat().st_size < 100_000
    with pytest.raises(
        DataError,
        match=r"'images/bomb\.png' unpacks to \d+ times its size, more than max_ratio 200",
    ):
        list_members(path, ArchiveLimits(), "/".join)
    assert len(list_members(path, ArchiveLimits(max_ratio=2000), "/".join)) == 1


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_members": 2}, "3 members are more than max_members 2"),
        ({"max_total_bytes": 25}, "unpacks to 30 bytes, more than max_total_bytes 25"),
    ],
)
def test_number_and_size_are_bounded_by_the_settings(
    write: Write, limits: dict[str, int], message: str
) -> None:
    path = write(*((f"{name}.png", b"x" * 10) for name in "abc"))
    with pytest.raises(DataError, match=message):
        list_members(path, ArchiveLimits(**limits), "/".join)


def test_overlapping_members_are_a_bomb_too(tmp_path: Path, write: Write) -> None:
    """Many entries of the directory over one piece of data: each looks harmless."""
    path = write(*((f"{index:03d}", bytes(1 << 20)) for index in range(2)))
    with zipfile.ZipFile(path) as archive:
        first = archive.infolist()[0]
    forged = tmp_path / "forged.zip"
    with (
        zipfile.ZipFile(path) as source,
        zipfile.ZipFile(forged, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        archive.writestr(first, source.read(first))
        for index in range(300):
            copy = zipfile.ZipInfo(f"{index:03d}x", ARCHIVE_TIME)
            copy.compress_type, copy.header_offset = first.compress_type, 0
            copy.file_size, copy.compress_size, copy.CRC = (
                first.file_size,
                first.compress_size,
                first.CRC,
            )
            archive.filelist.append(copy)
            archive.NameToInfo[copy.filename] = copy
    with pytest.raises(DataError, match=r"forged\.zip: .*unpacks to \d+ times its size"):
        list_members(forged, ArchiveLimits(max_ratio=1500), "/".join)


@pytest.mark.parametrize("keep", [0.3, 0.99])
def test_a_truncated_archive_is_named(write: Write, keep: float) -> None:
    path = write(*((f"{name}.bin", bytes(range(256)) * 40) for name in "abc"))
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])
    with pytest.raises(
        DataError, match=r"images\.zip: a damaged or truncated zip archive .*; fetch it again"
    ):
        list_members(path, ArchiveLimits(), "/".join)


def test_a_damaged_member_is_found_while_it_is_unpacked(tmp_path: Path, write: Write) -> None:
    path = write(("a.bin", bytes(range(256)) * 400))
    content = bytearray(path.read_bytes())
    content[60:70] = b"\xff" * 10
    path.write_bytes(content)
    (tmp_path / "out").mkdir()
    with pytest.raises(DataError, match="a damaged or truncated zip archive"):
        _extract(path, tmp_path / "out", 1)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_members_of_many_pieces_come_out_whole(tmp_path: Path, method: int) -> None:
    contents = {
        "empty.bin": b"",
        "exact.bin": bytes(range(256)) * 4096,
        "dense.bin": random.Random(0).randbytes(3 * 2**20 + 5),
        "thin.bin": b"abcdefgh" * 2**20,
        "höhe/名.bin": b"x" * 70_000,
    }
    path = tmp_path / "images.zip"
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    (tmp_path / "out").mkdir()
    digests = _extract(path, tmp_path / "out", 1, ArchiveLimits(max_ratio=2000))
    assert digests == {
        name: hashlib.sha256(content).hexdigest() for name, content in contents.items()
    }
    assert all(
        (tmp_path / "out" / name).read_bytes() == content for name, content in contents.items()
    )


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("declared", [10, 4096 * 256 + 5])
def test_a_member_of_another_size_than_declared_is_damaged(
    tmp_path: Path, method: int, declared: int
) -> None:
    path, content = tmp_path / "images.zip", bytes(range(256)) * 4096
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("a.bin", content)
    member = list_members(path, ArchiveLimits(), "/".join)[0]
    (tmp_path / "out").mkdir()
    job = Extraction(
        str(path), str(tmp_path / "out"), [member._replace(num_bytes=declared)], ImageCheck.NONE
    )
    with pytest.raises(
        DataError, match=rf"'a\.bin' unpacks to .* the {declared} bytes it declares"
    ):
        unpack_share(job, lambda _: None)
    assert (tmp_path / "out" / "a.bin").stat().st_size <= declared


def test_a_header_that_names_another_file_is_damaged(tmp_path: Path, write: Write) -> None:
    path = write(("a.bin", b"x" * 100))
    path.write_bytes(path.read_bytes().replace(b"a.bin", b"b.bin", 1))
    with pytest.raises(
        DataError, match=r"the directory says 'a\.bin' where the header says b'b\.bin'"
    ):
        _extract(path, tmp_path, 1)


def test_other_packing_than_deflate_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "images.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("a.bin", b"x" * 100)
    with pytest.raises(DataError, match=r"'a\.bin' is packed by method 12, not by deflate"):
        list_members(path, ArchiveLimits(), "/".join)


def test_all_processes_together_unpack_what_one_does(tmp_path: Path, write: Write) -> None:
    members = [
        (f"images/{i % 7}/{i:04d}.bin", bytes([i % 256]) * (i * 37 % 5000)) for i in range(500)
    ]
    path = write(*members)
    results = {}
    for workers in (1, 3):
        out = tmp_path / f"out-{workers}"
        out.mkdir()
        results[workers] = _extract(path, out, workers)
        assert {p.relative_to(out).as_posix(): p.read_bytes() for p in out.rglob("*.bin")} == dict(
            members
        )
    assert results[1] == results[3]
    assert len(results[1]) == 500


def _extract(
    path: Path,
    out: Path,
    num_workers: int,
    limits: ArchiveLimits = ArchiveLimits(),  # noqa: B008
) -> dict[str, str]:
    members = list_members(path, limits, "/".join)
    done: list[int] = []
    found = extract(
        path,
        out,
        members,
        check=ImageCheck.NONE,
        num_workers=num_workers,
        run=run_in_processes if num_workers > 1 else run_here,
        advance=done.append,
    )
    assert sum(done) == len(members), "progress counts every file once"
    return found.digests
