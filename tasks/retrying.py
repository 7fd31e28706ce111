"""Selection of the failures that a retry can help: a dead worker or a flaky machine, never a
problem the user has to fix."""

from typing import Any

from prefect import Task
from prefect.client.schemas.objects import State, TaskRun

from rl_core.errors import OF_A_DISK, UserError


def worth_retrying(task: Task[..., Any], task_run: TaskRun, state: State[Any]) -> bool:
    """Return True if the failed state is worth another attempt."""
    try:
        state.result(raise_on_failure=True)
    except UserError:
        return False
    except OSError as error:
        return error.errno not in OF_A_DISK  # a full disk stays full
    except Exception:  # whatever else it was, a fresh attempt may succeed
        return True
    return False
