"""What one process writes another reads: by file, by pickle, through Ray's object store, and by a
collective."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from rl_core.data_proto import DataProto, DataProtoError, DataProtoFuture, all_gather_data_proto
from tests.data_proto.samples import Labelled, holding, identical, numbers_of, rows

ROOT = Path(__file__).parents[2]

READER = """
import pickle, sys, warnings
warnings.simplefilter("error")
from rl_core.data_proto import DataProto
from tests.data_proto.samples import numbers_of
for path in sys.argv[1:]:
    proto = DataProto.load_from_disk(path) if path.endswith("saved") else pickle.load(open(path, "rb"))
    assert numbers_of(proto) == [0, 1, 2, 3, 4], path
    assert (type(proto).__name__, proto.label, proto.meta_info["step"]) == ("Labelled", "mine", 3)
    proto.tensor("pair").add_(1)
    proto.save_to_disk(sys.argv[1] + ".answer")
"""  # noqa: E501


def test_another_process_reads_what_this_one_wrote(tmp_path: Path):
    import pickle

    proto = rows(5, cls=Labelled)
    proto.label = "mine"
    paths = [tmp_path / "saved", *(tmp_path / f"protocol-{protocol}" for protocol in (2, 3, 4, 5))]
    proto.save_to_disk(paths[0])
    for path, protocol in zip(paths[1:], (2, 3, 4, 5), strict=True):
        path.write_bytes(pickle.dumps(proto, protocol))
    command = [sys.executable, "-W", "error", "-c", READER, *map(str, paths)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    answer = DataProto.load_from_disk(tmp_path / "saved.answer")
    assert torch.equal(answer.tensor("pair"), proto.tensor("pair") + 1)


def test_a_batch_from_the_object_store_shares_its_memory_and_is_usable(ray_cluster: None):
    import ray

    big = DataProto.from_dict(
        {"a": torch.arange(2**18).view(2**9, 2**9)}, {"n": np.arange(2**9)}, {"step": 1}
    )
    reference = ray.put(big)
    one, two = ray.get(reference), ray.get(reference)
    assert identical(one, big)
    assert one.tensor("a").data_ptr() == two.tensor("a").data_ptr()
    assert numbers_of(ray.get(ray.put(rows(4)))) == [0, 1, 2, 3]
    one.batch["b"] = one.tensor("a") + 1
    one.union(DataProto.from_dict({"c": torch.ones(2**9)}))
    own = one.clone()
    own.tensor("a").zero_()
    assert identical(ray.get(reference), big)
    assert numbers_of(DataProto.concat([ray.get(ray.put(part)) for part in rows(6).chunk(3)])) == [
        0,
        1,
        2,
        3,
        4,
        5,
    ]


def test_memory_from_the_object_store_outlives_its_reference(ray_cluster: None):
    import ray

    reference = ray.put(DataProto.from_dict({"a": torch.full((2**18,), 7)}))
    tensor = ray.get(reference).tensor("a")
    del reference
    others = [ray.put(torch.zeros(2**18)) for _ in range(5)]
    assert bool((tensor == 7).all())
    del others


def test_a_future_joins_and_cuts_only_when_it_is_asked(ray_cluster: None):
    import ray

    future = DataProtoFuture.concat([ray.put(rows(2)), ray.put(rows(4, start=2))])
    assert numbers_of(future.get()) == [0, 1, 2, 3, 4, 5]
    parts = future.chunk(3)
    assert [numbers_of(part.get()) for part in parts] == [[0, 1], [2, 3], [4, 5]]

    @ray.remote(num_cpus=0)
    def consume(part: DataProtoFuture) -> list[int]:
        return numbers_of(part.get())

    assert ray.get([consume.remote(part) for part in parts]) == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(DataProtoError, match="answer 1 is a int"):
        DataProtoFuture.concat([ray.put(rows(2)), ray.put(3)]).get()


def test_a_future_takes_those_of_the_standard_library():
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor() as pool:
        future = DataProtoFuture.concat([pool.submit(rows, 2), pool.submit(rows, 1, 2)])
        assert numbers_of(future.get()) == [0, 1, 2]


def gather(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", f"file://{folder}/rendezvous", rank=rank, world_size=2)
    for name, counts in {
        "equal": (3, 3),
        "uneven": (2, 5),
        "one empty": (0, 3),
        "both empty": (0, 0),
    }.items():
        proto = rows(counts[rank], start=rank * counts[0], cls=Labelled)
        proto.meta_info["rank"] = rank
        batch = proto.batch
        all_gather_data_proto(proto, dist.group.WORLD)
        assert numbers_of(proto) == list(range(sum(counts))), name
        assert (type(proto), proto.meta_info["rank"], len(batch)) == (Labelled, rank, counts[rank])
    texts = DataProto.from_dict(non_tensors={"text": [f"of {rank}"]})
    all_gather_data_proto(texts)
    assert texts.non_tensor_batch["text"].tolist() == ["of 0", "of 1"]
    different = DataProto.from_dict({"a" if rank else "b": torch.zeros(2)})
    try:
        all_gather_data_proto(different)
    except DataProtoError as error:
        assert "rank 1 has" in str(error)
        assert len(different) == 2
    else:
        raise AssertionError("ranks with different columns were joined")
    holding([rank]).save_to_disk(f"{folder}/done-{rank}")
    dist.destroy_process_group()


@pytest.mark.slow
def test_all_gather_gives_every_rank_the_rows_of_all(tmp_path: Path):
    mp.start_processes(gather, args=(str(tmp_path),), nprocs=2, start_method="spawn")
    assert [numbers_of(DataProto.load_from_disk(tmp_path / f"done-{rank}")) for rank in (0, 1)] == [
        [0],
        [1],
    ]
