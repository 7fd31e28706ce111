"""A taskset of the verifiers package with a tool."""

import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]

__all__ = ["Looked"]


class Atlas(vf.Toolset[vf.ToolsetConfig, vf.State]):
    @vf.tool
    async def capital(self, country: str) -> str:
        """Capital of a country."""
        return {"Peru": "Lima"}.get(country, "unknown")


class LookTask(vf.Task):
    @classmethod
    def toolsets(cls, config):
        return [Atlas(vf.ToolsetConfig())]

    @vf.reward
    async def right(self, trace) -> float:
        return float("Lima" in trace.last_reply)


class Looked(vf.Taskset[LookTask]):
    def load(self):
        yield LookTask(vf.TaskData(prompt="The capital of Peru?"), self.config.task)


if __name__ == "__main__":
    Atlas.run()
