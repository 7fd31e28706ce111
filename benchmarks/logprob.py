"""Log-probabilities over a vocabulary of 49,152 words, forward and backward: in chunks, and the
plain way.

    python -m benchmarks.logprob [--tokens 2048] [--hidden 576] [--repeats 3] [--threads 1]
    [--device cpu]
        [--weights float32 bfloat16]

Each way runs in a process of its own, so that its peak memory is its own. The plain way is
`log_softmax(hidden @ weight.T)` and `gather`, as a training loop without care would write it.
Seconds are the best of the repeats: of the process's own CPU time on a CPU, which other work on the
machine does not lengthen, and of the wall clock on a GPU.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import subprocess
import sys
import time
from pathlib import Path

VOCABULARY = 49_152


def measure(way: str, dtype_name: str, head: str, args: argparse.Namespace) -> dict[str, float]:
    """Best seconds of forward and backward, and bytes above what the inputs take; in this
    process."""
    import torch

    from rl_core.models.chunked_log_probs import linear_log_probs

    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    dtype, device = getattr(torch, dtype_name), torch.device(args.device)
    hidden = torch.randn(args.tokens, args.hidden, device=device).to(dtype).requires_grad_()
    weight = (
        (0.05 * torch.randn(VOCABULARY, args.hidden, device=device))
        .to(dtype)
        .requires_grad_(head == "trained")
    )
    targets = torch.randint(0, VOCABULARY, (args.tokens,), device=device)
    grad = torch.randn(args.tokens, device=device)

    def once() -> torch.Tensor:
        if way == "chunked":
            log_probs, _ = linear_log_probs(hidden, weight, targets)
        else:
            log_probs = (
                (hidden @ weight.t()).float().log_softmax(-1).gather(-1, targets[:, None])[:, 0]
            )
        hidden.grad = weight.grad = None
        log_probs.backward(grad)
        return log_probs

    on_gpu = device.type == "cuda"
    clock = time.perf_counter if on_gpu else time.process_time
    held = _reset_peak(on_gpu)
    seconds = []
    for _ in range(args.repeats):
        start = clock()
        once()
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append(clock() - start)
    return {"seconds": min(seconds), "bytes": float(_peak(on_gpu) - held)}


def _reset_peak(on_gpu: bool) -> int:
    """Forget the peak so far. Returns: bytes in use now."""
    if on_gpu:
        import torch

        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _peak(on_gpu: bool) -> int:
    if on_gpu:
        import torch

        return torch.cuda.max_memory_allocated()
    return _status("VmHWM")


def _status(field: str) -> int:
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def main() -> None:
    """Run every case both ways and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--hidden", type=int, default=576)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--weights", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--one", nargs=3, metavar=("WAY", "DTYPE", "HEAD"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(*args.one, args)))
        return
    print(
        f"{args.tokens} tokens, hidden {args.hidden}, vocabulary {VOCABULARY}, {args.device}, "
        "forward and backward"
    )
    print(
        f"{'weights':9} {'head':8} {'way':8} {'seconds':>8} {'peak MiB':>9}   chunked / plain: "
        "time, memory"
    )
    for dtype, head in itertools.product(args.weights, ("trained", "frozen")):
        found = {way: _in_process(way, dtype, head) for way in ("plain", "chunked")}
        ratios = [found["chunked"][key] / found["plain"][key] for key in ("seconds", "bytes")]
        for way, numbers in found.items():
            tail = f"   {ratios[0]:.2f}, {ratios[1]:.2f}" if way == "chunked" else ""
            print(
                f"{dtype:9} {head:8} {way:8} {numbers['seconds']:8.2f} "
                f"{numbers['bytes'] / 2**20:9.0f}{tail}"
            )


def _in_process(way: str, dtype: str, head: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.logprob", *sys.argv[1:], "--one", way, dtype, head]
    return json.loads(
        subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
    )


if __name__ == "__main__":
    main()
