"""Memory that is left."""

from pathlib import Path

from rl_core.runtime.free_memory import container_room, free_bytes

GIB = 2**30


def test_a_containers_limit_is_read(tmp_path: Path):
    assert container_room(tmp_path) is None
    (tmp_path / "memory.current").write_text(f"{GIB}\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert container_room(tmp_path) is None
    (tmp_path / "memory.max").write_text(f"{3 * GIB}\n")
    assert container_room(tmp_path) == 2 * GIB
    (tmp_path / "memory.max").write_text(f"{GIB // 2}\n")
    assert container_room(tmp_path) == 0, "a limit that was lowered"


def test_this_machine_has_some_left():
    assert free_bytes() > 0
