"""Selection of the failures that a retry can help: a dead worker or a flaky machine, never a
problem the user has to fix."""

from typing import Any

from prefect import Task
from prefect.client.schemas.objects import State, TaskRun
from prefect.exceptions import TerminationSignal

from rl_core.errors import OF_A_DISK, UserError, causes


def worth_retrying(task: Task[..., Any], task_run: TaskRun, state: State[Any]) -> bool:
    """Return True if the failed state is worth another attempt."""
    try:
        state.result(raise_on_failure=True)
    except UserError:
        return False
    except OSError as error:
        return error.errno not in OF_A_DISK  # a full disk stays full
    except Exception as error:
        # A retry would lose an interrupt. Whatever else it was, a fresh attempt may succeed.
        return not came_of_a_signal(error)
    return False


def came_of_a_signal(error: BaseException) -> bool:
    """Return True if an error is an interrupt, or what a library made of one."""
    # While a flow runs, SIGTERM is Prefect's, which raises its own.
    return any(isinstance(one, KeyboardInterrupt | TerminationSignal) for one in causes(error))
