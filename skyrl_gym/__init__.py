"""SkyRL's import paths for the classes of `rl_core.envs`, so that environments written for SkyRL
import unchanged."""

from rl_core.envs import make, register

__all__ = ["make", "register"]
