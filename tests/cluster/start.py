"""The start of a run on a cluster, without its training: a driver that connects, places two ranks
and has them add up ones. Takes a JSON object, prints one."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from rl_core.distributed import DevicePool, placement, remote
from rl_core.distributed.cluster import ray_cluster
from rl_core.distributed.nodes.capacity import Wanted, capacity, wait_for_devices
from rl_core.distributed.nodes.preflight import Needs, needing
from rl_core.errors import RLTrainError
from tests.cluster.parts import Summing


def main(asked: dict[str, Any]) -> dict[str, Any]:
    """Start two ranks. Returns: what they say, or the error."""
    notes: list[str] = []
    needs = asked.get("needs", {})
    needs["folders"] = tuple(map(tuple, needs.get("folders", ())))
    try:
        with ray_cluster(asked["address"], 2, "cpu", asked.get("modules", ())):
            wanted = Wanted(2, "cpu")
            if "until" in asked:
                # What the driver has seen before a machine is lost.
                print(f"seen {capacity(wanted)}", flush=True)
                while not Path(asked["until"]).exists() or capacity(wanted) > 1:
                    time.sleep(0.1)
            have = wait_for_devices(
                wanted, asked.get("wait_s"), asked.get("least", 2), notes.append
            )
            pool = DevicePool(have, collective_timeout_s=asked.get("timeout_s", 60))
            with needing(Needs(**needs, note=notes.append)), placement(pool) as block:
                summing = remote(Summing)
            said: dict[str, Any] = {"total": summing.total(), "facts": summing.facts()}
            if "hold_s" in asked:
                said["held"] = summing.hold(asked["hold_s"])
            if "module" in asked:
                said["imported"] = summing.imported(asked["module"])
            block.close()
    except RLTrainError as error:
        return {"error": type(error).__name__, "said": str(error), "notes": notes}
    return {**said, "notes": notes}


if __name__ == "__main__":
    print("\n" + json.dumps(main(json.loads(sys.argv[1]))))
