"""RL post-training: the library below `flows` and `tasks`, which order its steps."""

from rl_core.runtime.own_packages import find_own_packages_first

find_own_packages_first()
