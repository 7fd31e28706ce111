"""What trackers wrote on this machine, read back: `{(metric, step): [values in order]}`."""

import json
import struct
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

BLOCK, FILE_HEADER, HEADER = 2**15, 7, 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4

Recorded = dict[tuple[str, int], list[float]]


def in_tensorboard(folder: Path) -> Recorded:
    """Raw events, before TensorBoard hides any."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util.tensor_util import make_ndarray

    found: Recorded = defaultdict(list)
    for path in sorted(folder.glob("events.*")):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                array = make_ndarray(value.tensor)
                if array.dtype.kind == "f":
                    found[value.tag, event.step].append(float(array))
    return dict(found)


def in_wandb(folder: Path) -> tuple[Recorded, set[str], dict[str, object]]:
    """Metrics, the run's ids, and its settings, of every offline folder under `folder`."""
    from wandb.proto.wandb_internal_pb2 import Record

    found: Recorded = defaultdict(list)
    ids, config = set(), {}
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for data in _records(path.read_bytes()):
            record = Record()
            record.ParseFromString(data)
            ids |= {record.run.run_id} - {""}
            config |= {one.key: json.loads(one.value_json) for one in record.run.config.update}
            row = {
                one.key or "/".join(one.nested_key): json.loads(one.value_json)
                for one in record.history.item
            }
            for key, value in row.items():
                if key != "step" and not key.startswith("_"):
                    found[key, int(row["step"])].append(value)
    return dict(found), ids, config


def _records(data: bytes) -> Iterator[bytes]:
    """Records of a log in LevelDB's format, in which wandb keeps a run."""
    at, parts = FILE_HEADER, b""
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        if kind not in (FULL, FIRST, MIDDLE, LAST):
            return
        parts += data[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (FULL, LAST):
            yield parts
            parts = b""
