"""Groups that a rollout left unfinished, and that the next one goes on with
(`rollout.carry_over`)."""

from __future__ import annotations

from dataclasses import dataclass

from rl_core.errors import EnvError
from rl_core.models.decoding.request import Reply, StopReason


@dataclass(frozen=True)
class Begun:
    """The first reply of an episode so far, which may have ended."""

    prompt_ids: list[int]
    reply: Reply

    @property
    def has_ended(self) -> bool:
        """True if nothing of the reply is to be sampled any more."""
        return self.reply.stop_reason is not StopReason.GIVEN_UP

    def check_prompt(self, prompt_ids: list[int], env_class: str) -> None:
        """Check that an environment that was made again asks the same. Raises: EnvError."""
        if prompt_ids != self.prompt_ids:
            raise EnvError(
                f"{env_class}.init gave a prompt of {len(prompt_ids)} tokens where it had given "
                f"another, of {len(self.prompt_ids)}, to the same row: a reply that goes on in the "
                "next step needs the prompt that it answers. Let init depend on the row alone, or "
                "set rollout.carry_over: 0"
            )


@dataclass(frozen=True)
class Unfinished:
    """A group that goes on in the next rollout."""

    group: str
    """Its `group_id` in the batch of prompts."""
    times: int
    """Rollouts that left it unfinished."""
    begun: tuple[Begun | None, ...]
    """Its samples, in order; None where nothing was sampled yet."""
