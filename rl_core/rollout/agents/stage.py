"""Parts of a worker that its agents share from rollout to rollout: their processes, the endpoint,
and the models that play against the policy."""

from __future__ import annotations

import atexit
import logging
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import count

import torch

from rl_core.data.prepare.items import PlayedItem
from rl_core.envs.agent import AgentEnv, AgentSettings, is_agent
from rl_core.envs.registration import make
from rl_core.envs.seats import Player, ServedSeat
from rl_core.rollout.agents.endpoint import EpisodeEndpoint, listening
from rl_core.rollout.agents.opponents import FrozenOpponent, Opponent, ServedOpponent
from rl_core.rollout.agents.processes import AgentProcesses
from rl_core.serving.app import build_app_by_key
from rl_core.serving.served_model import KnownModel


class AgentStage:
    """Processes of a recipe's agents and the endpoint that they ask, which are kept between
    rollouts: imports take seconds, and a server that ends waits for its next look at the clock.

    Args: options: a recipe's `environments`. model: as requests know it. device: of frozen models
    that play a seat.
    """

    def __init__(
        self,
        options: Mapping[str, Mapping[str, object]],
        model: KnownModel,
        device: torch.device | str = "cpu",
    ) -> None:
        self.options, self.model, self.device = options, model, torch.device(device)
        self._processes: dict[str, AgentProcesses] = {}
        self._opponents: dict[str, Opponent] = {}
        self._told: set[str] = set()
        self._serving = ExitStack()
        self._url: str | None = None
        self.keys: dict[str, EpisodeEndpoint] = {}
        """Endpoints of the running episodes by their keys."""
        self.numbers = count()
        """Numbers of episodes, none twice: an end may be told after the next rollout began."""

    def plays(self, item: PlayedItem) -> bool:
        """Return True if an agent plays this row."""
        name = item["env_class"]
        return is_agent(name, self.options.get(name))

    def config(self, name: str) -> AgentSettings:
        """Return the settings of an agent. Raises: EnvError on a wrong one."""
        env = make(name, self.options[name], {})
        assert isinstance(env, AgentEnv)
        return env.config

    def processes(self, name: str) -> AgentProcesses:
        """Return the processes of an agent. Raises: EnvError when it cannot be imported."""
        found = self._processes.get(name)
        if found is None or not found.alive:
            if found is not None:
                found.close()
            found = self._processes[name] = AgentProcesses(name, self.config(name))
            atexit.register(found.close)
        return found

    def opponent(self, player: Player) -> Opponent:
        """Return who plays a seat that is not the policy's; a model is loaded once.

        Raises: ModelError when it cannot be loaded.
        """
        key = str(player)
        if key not in self._opponents:
            if isinstance(player, ServedSeat):
                self._opponents[key] = ServedOpponent(player, self.model)
            else:
                self._opponents[key] = FrozenOpponent(
                    player, self.device, self.model.chat.template_kwargs
                )
            atexit.register(self._opponents[key].close)
        return self._opponents[key]

    def url(self) -> str:
        """Return the address of the endpoint, which starts when it is first asked for.

        Raises: WorkerDied when it does not start.
        """
        if self._url is None:
            self._url = self._serving.enter_context(listening(build_app_by_key(self.keys.get)))
            atexit.register(self._serving.close)
        return self._url

    def end(self, name: str, number: int) -> None:
        """End an episode's process if it still runs."""
        if name in self._processes:
            self._processes[name].end(number)

    def tell(self, name: str, error: str) -> None:
        """Log a failure of an agent, each once."""
        if (what := f"environments.{name}: {error}") not in self._told:
            self._told.add(what)
            logging.getLogger(__name__).warning(what)

    def close(self) -> None:
        """End all processes."""
        for one in self._processes.values():
            atexit.unregister(one.close)
            one.close()
        for opponent in self._opponents.values():
            atexit.unregister(opponent.close)
            opponent.close()
        atexit.unregister(self._serving.close)
        self._serving.close()
        self._processes, self._opponents, self._url = {}, {}, None
