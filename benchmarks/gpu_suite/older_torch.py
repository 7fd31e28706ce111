"""The name that FSDP2 of torch 2.11 lacks: its parameter groups are a list only since 2.12.

The project wants torch 2.13; a machine with a GPU that is at hand may have what it has. This can go
when nobody runs the suite on torch 2.11.
"""

from __future__ import annotations

from typing import Any


def name_param_groups() -> None:
    """Give `FSDPState` the attribute `_fsdp_param_groups` where it has one group or none."""
    from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState

    def groups(state: Any) -> list[Any]:
        group = state._fsdp_param_group
        return [] if group is None else [group]

    state: Any = FSDPState
    probe = FSDPState.__new__(FSDPState)
    FSDPState.__init__(probe)
    if not hasattr(probe, "_fsdp_param_groups"):
        state._fsdp_param_groups = property(groups)
