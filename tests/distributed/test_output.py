"""What workers print reaches the caller's log, marked with rank and role; what libraries chatter
does not."""

import io
import time
from collections.abc import Iterator

import pytest

from rl_core.distributed import DevicePool, output, placement, remote
from rl_core.distributed.output import MAX_LINES, Labelled, collect, collected_output, forward
from tests.distributed.components import Talker

DEADLINE_S = 60.0


@pytest.fixture(autouse=True)
def nothing_waits() -> Iterator[None]:
    forward()
    yield
    forward()


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == output.logger.name]


def test_each_line_has_its_mark_and_progress_bars_are_left_out():
    stream, doing = io.StringIO(), ["rank 0 Stack-0.train"]
    labelled = Labelled(stream, lambda: doing[0])
    labelled.write("one\ntw")
    doing[0] = "rank 0"
    labelled.write("o\n\n")
    labelled.write("\r 10%|#  |\r100%|###| 3/3 [00:01]\n")
    labelled.write("old\rnew\nunfinished")
    assert stream.getvalue() == "[rank 0 Stack-0.train] one\n[rank 0] two\n[rank 0] new\n"
    assert labelled.getvalue() == stream.getvalue(), "everything else is the stream's own"


def test_only_marked_lines_are_forwarded_and_a_flood_is_cut(caplog: pytest.LogCaptureFixture):
    collect(
        {
            "pid": 1,
            "lines": [
                "[Gloo] Rank 0 is connected",
                "[rank 1 Probe-0.get] hello",
                "(raylet) spilling",
            ],
        }
    )
    forward()
    assert messages(caplog) == ["[rank 1 Probe-0.get] hello"]
    caplog.clear()
    collect({"lines": [f"[rank 0] {number}" for number in range(MAX_LINES + 7)]})
    forward()
    assert len(messages(caplog)) == MAX_LINES + 1
    assert messages(caplog)[-1].startswith("7 more lines")
    caplog.clear()
    forward()
    assert messages(caplog) == []


def test_what_ranks_print_is_logged_while_their_caller_waits(
    ray_cluster: None, caplog: pytest.LogCaptureFixture
):
    with collected_output(), placement(DevicePool(2, threads_per_device=1)) as block:
        talker = remote(Talker)
        try:
            talker.say("good morning")
            wanted = {f"[rank {rank} Talker-0.say] good morning from {rank}" for rank in (0, 1)}
            end = time.monotonic() + DEADLINE_S
            while not wanted <= set(messages(caplog)):
                assert time.monotonic() < end, messages(caplog)
                time.sleep(0.2)
                talker.say("still here")  # a call logs what has arrived by then
        finally:
            block.close()
