"""The torch profiler in the workers of a block, switched on for single steps."""

from __future__ import annotations

from pathlib import Path

from rl_core.ranks.rank_info import RankInfo


class StepProfiler:
    """Sibling of the components that it records: everything that its process computes between
    `start` and `stop`, on the CPU and on its GPU."""

    needs_rank_info = True

    def __init__(self, *, rank_info: RankInfo) -> None:
        self._info = rank_info
        self._profile = None

    def start(self) -> None:
        """Begin to record."""
        from torch._C._profiler import _ExperimentalConfig
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU]
        if self._info.device_kind == "cuda":
            activities.append(ProfilerActivity.CUDA)
        # Backward passes run on threads of autograd's own.
        every_thread = _ExperimentalConfig(profile_all_threads=True)
        self._profile = profile(activities=activities, experimental_config=every_thread)
        self._profile.start()

    def stop(self, folder: str, name: str) -> str | None:
        """End the recording, and write it as `<folder>/<name>-rank-<rank>.json.gz`.

        Returns: the path of the trace; None if nothing was recorded.
        """
        if self._profile is None:
            return None
        profiled, self._profile = self._profile, None
        profiled.stop()
        path = Path(folder) / f"{name}-rank-{self._info.rank}.json.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        profiled.export_chrome_trace(str(path))
        return str(path)
