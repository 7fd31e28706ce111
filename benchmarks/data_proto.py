"""DataProto on a batch of 1024 x 1024 with ten tensors (52 MB) and five object columns, each figure
compared with memcpy.

Every operation is timed in turn with a copy of as many bytes into fresh memory, and with the plain
way of doing the same: a pickle of the TensorDict, a loop over single rows, TensorDict's own
methods. If `verl` can be imported, its class does the same work in the same run.

    python -m benchmarks.data_proto [--repeats 15] [--without-ray]
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import pickle
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

os.environ.setdefault("RAY_worker_niceness", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import numpy as np
import torch
from tensordict import TensorDict

from rl_core.data_proto import DataProto

NUM_ROWS = WIDTH = 1024
MINI_BATCH = 64

Work = Callable[[], object]


@dataclass
class Case:
    """One operation, and other implementations of it."""

    name: str
    ours: Work
    num_copies: float
    """Number of batch sizes that the operation has to write, which memcpy gets too; zero for
    views."""
    others: dict[str, Work] = field(default_factory=dict)


def columns() -> tuple[dict[str, torch.Tensor], dict[str, np.ndarray]]:
    """Return three int64, six float32 and one bfloat16 tensor, and columns of texts, ids, numbers,
    lists and dicts."""
    generator = torch.Generator().manual_seed(0)
    shape = (NUM_ROWS, WIDTH)
    tensors = {f"ids_{i}": torch.randint(0, 50_000, shape, generator=generator) for i in range(3)}
    tensors |= {f"values_{i}": torch.randn(shape, generator=generator) for i in range(6)}
    tensors["hidden"] = torch.randn(shape, generator=generator).bfloat16()
    rows = range(NUM_ROWS)
    objects = {
        "text": [f"question number {row}" for row in rows],
        "uid": [f"{row:032x}" for row in rows],
        "score": [row / NUM_ROWS for row in rows],
        "turns": [[row, row + 1] for row in rows],
        "info": [{"split": "train", "index": row} for row in rows],
    }
    arrays = {}
    for key, values in objects.items():
        arrays[key] = np.empty(NUM_ROWS, dtype=object)
        arrays[key][:] = values
    return tensors, arrays


def out_of_band(value: object) -> object:
    """Pickle and unpickle with out-of-band buffers, as between processes that share memory."""
    buffers: list[pickle.PickleBuffer] = []
    stream = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return pickle.loads(stream, buffers=buffers)


def in_band(value: object, protocol: int = 5) -> object:
    """Pickle and unpickle through one stream of bytes."""
    return pickle.loads(pickle.dumps(value, protocol=protocol))


def consume(iterator: Iterator[object]) -> None:
    for _ in iterator:
        pass


def plain_rows(batch: TensorDict, arrays: dict[str, np.ndarray], shuffle: bool) -> Iterator[object]:
    """Yield mini-batches put together from single rows."""
    order = torch.randperm(NUM_ROWS).tolist() if shuffle else range(NUM_ROWS)
    for start in range(0, NUM_ROWS, MINI_BATCH):
        rows = order[start : start + MINI_BATCH]
        yield (
            torch.stack([batch[row] for row in rows]),
            {key: [array[row] for row in rows] for key, array in arrays.items()},
        )


def cases(proto: Any, peer: Any, peer_cls: Any) -> list[Case]:
    """Return the cases that need no Ray. `peer` is the same batch in the other library, or None."""
    batch, arrays = proto.batch, proto.non_tensor_batch
    permutation = torch.randperm(NUM_ROWS, generator=torch.Generator().manual_seed(1))
    parts = proto.chunk(8)
    shuffle = {"shuffle": True}
    listed = [
        Case(
            "pickle, buffers out of band",
            lambda: out_of_band(proto),
            1,
            {"plain": lambda: out_of_band((batch, arrays))},
        ),
        Case(
            "pickle, one stream",
            lambda: in_band(proto),
            2,
            {"plain": lambda: in_band((batch, arrays))},
        ),
        Case(
            "pickle, one stream, protocol 4",
            lambda: in_band(proto, 4),
            3,
            {"plain": lambda: in_band((batch, arrays), 4)},
        ),
        Case(
            "iterator, one epoch",
            lambda: consume(proto.make_iterator(MINI_BATCH, 1)),
            0,
            {"plain": lambda: consume(plain_rows(batch, arrays, False))},
        ),
        Case(
            "iterator, shuffled epoch",
            lambda: consume(proto.make_iterator(MINI_BATCH, 1, seed=0)),
            1,
            {"plain": lambda: consume(plain_rows(batch, arrays, True))},
        ),
        Case("chunk into 64", lambda: proto.chunk(64), 0, {"plain": lambda: batch.chunk(64)}),
        Case(
            "concat of 8",
            lambda: DataProto.concat(parts),
            1,
            {"plain": lambda: torch.cat([part.batch for part in parts])},
        ),
        Case(
            "repeat 2, interleaved",
            lambda: proto.repeat(2),
            2,
            {"plain": lambda: batch.repeat_interleave(2, dim=0)},
        ),
        Case(
            "repeat 2, tiled",
            lambda: proto.repeat(2, interleave=False),
            2,
            {"plain": lambda: torch.cat([batch, batch])},
        ),
        Case(
            "index by a permutation",
            lambda: proto[permutation],
            1,
            {"plain": lambda: batch[permutation]},
        ),
        Case(
            "slice of half",
            lambda: proto[: NUM_ROWS // 2],
            0,
            {"plain": lambda: batch[: NUM_ROWS // 2]},
        ),
    ]
    if peer is not None:
        peer_parts = peer.chunk(8)
        works: list[Work | None] = [
            None,
            lambda: in_band(peer),
            lambda: in_band(peer, 4),
            lambda: consume(peer.make_iterator(MINI_BATCH, 1)),
            lambda: consume(peer.make_iterator(MINI_BATCH, 1, seed=0, dataloader_kwargs=shuffle)),
            lambda: peer.chunk(64),
            lambda: peer_cls.concat(peer_parts),
            lambda: peer.repeat(2),
            lambda: peer.repeat(2, interleave=False),
            lambda: peer[permutation],
            lambda: peer[: NUM_ROWS // 2],
        ]
        for case, work in zip(listed, works, strict=True):
            if work is not None:
                case.others["verl"] = work
    return listed


def ray_case(proto: DataProto, peer: object) -> Case:
    """Return the case of a put into the object store and a get, in one process."""
    import ray

    ray.init(
        address="local",
        num_cpus=1,
        include_dashboard=False,
        object_store_memory=2**30,
        log_to_driver=False,
    )

    def through(value: object) -> object:
        return ray.get(ray.put(value))

    plain = (proto.batch, proto.non_tensor_batch)
    others: dict[str, Work] = {"plain": lambda: through(plain)}
    if peer is not None:
        others["verl"] = lambda: through(peer)
    return Case("ray.put and ray.get", lambda: through(proto), 1, others)


def copy_of(tensors: list[torch.Tensor], times: float) -> Work:
    """Copy the batch's bytes into fresh memory, `times` over."""
    return lambda: [[tensor.clone() for tensor in tensors] for _ in range(round(times))]


def timed(works: dict[str, Work], repeats: int) -> dict[str, tuple[float, float]]:
    """Return minimum and median milliseconds of each function; they take turns, so that other load
    hits all alike."""
    taken: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(repeats + 2):
        for name, work in works.items():
            start = time.perf_counter()
            result = work()
            elapsed = (time.perf_counter() - start) * 1e3
            del result
            if turn >= 2:
                taken[name].append(elapsed)
    return {name: (min(values), float(np.median(values))) for name, values in taken.items()}


def verl_of(tensors: dict[str, torch.Tensor], arrays: dict[str, np.ndarray]) -> tuple[Any, Any]:
    """Return the same batch in verl's class, and the class; both None if verl is missing."""
    if importlib.util.find_spec("verl") is None:
        return None, None
    from verl.protocol import DataProto as Peer  # type: ignore[import-not-found]

    return Peer.from_dict(tensors, arrays), Peer


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--without-ray", action="store_true")
    options = parser.parse_args()
    tensors, arrays = columns()
    proto = DataProto.from_dict(tensors, arrays, {"step": 1})
    peer, peer_cls = verl_of(tensors, arrays)
    size = sum(tensor.nbytes for tensor in tensors.values())
    print(
        f"{NUM_ROWS} x {WIDTH}, {len(tensors)} tensors, {size / 1e6:.1f} MB, {len(arrays)} "
        "object columns; ",
        end="",
    )
    print(f"{torch.get_num_threads()} torch threads; minimum / median of {options.repeats}, in ms")
    heads = ["DataProto", "memcpy", "plain", *(["verl"] if peer is not None else [])]
    print(f"{'':32}" + "".join(f"{head:>20}" for head in heads))
    listed = cases(proto, peer, peer_cls)
    if not options.without_ray:
        listed.append(ray_case(proto, peer))
    for case in listed:
        works = {"DataProto": case.ours, **case.others}
        if case.num_copies:
            works["memcpy"] = copy_of(list(tensors.values()), case.num_copies)
        figures = timed(works, options.repeats)
        cells = []
        for head in heads:
            if head in figures:
                cells.append(f"{figures[head][0]:9.2f} / {figures[head][1]:.2f}")
            else:
                cells.append("-")
        print(f"{case.name:32}" + "".join(f"{cell:>20}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
