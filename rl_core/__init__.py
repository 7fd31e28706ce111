"""RL post-training: everything but the order of its steps, which is `flows` and `tasks`."""

from rl_core.runtime.own_packages import find_own_packages_first

find_own_packages_first()
