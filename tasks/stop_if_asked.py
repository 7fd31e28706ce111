"""The end of a run in which a watcher fired that its recipe sets to `stop`."""

from rl_core.errors import StoppedByWatcher
from rl_core.runs.session import session_for
from rl_core.tracking.run import STOPPED_TAG
from schemas.receipts import RunPlan
from tasks.write_report import write_report


def stop_if_asked(plan: RunPlan) -> None:
    """Write the report and end the run if one of its watchers asks for it.

    Raises: StoppedByWatcher, which names the watcher, the last checkpoint and how to go on.
    """
    session = session_for(plan)
    try:
        session.check_watchers()
    except StoppedByWatcher as stopped:
        session.tracking.set_tags({STOPPED_TAG: str(stopped)})
        write_report(plan, return_state=True)
        raise
