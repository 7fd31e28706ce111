"""Peak memory of a process."""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

STATUS = Path("/proc/self/status")


def peak_bytes(device: torch.device) -> int:
    """Return the peak bytes since this process began: of a GPU's tensors, or else of the
    process."""
    if device.type == "cuda":
        import torch

        return torch.cuda.max_memory_allocated(device)
    # What `getrusage` counts may be that of the process which started this one.
    found = re.search(r"VmHWM:\s+(\d+) kB", STATUS.read_text()) if STATUS.is_file() else None
    if found is not None:
        return int(found[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )
