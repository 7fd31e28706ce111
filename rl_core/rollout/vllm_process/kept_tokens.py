"""Extra arguments of vLLM's requests, which say how tokens are chosen, and the record of those that
could be drawn.

vLLM has the same settings as the project's own engines, but does not say which tokens they left,
without which training has no log-probabilities of what was sampled. So `logits_processor` leaves
them out as those engines do.
"""

from __future__ import annotations

from rl_core.models.decoding.token_choice import StepSupport

CHOICE, NUMBER = "rl_train_choice", "rl_train_request"
"""Keys of a request's extra arguments: how its tokens are chosen, and its place in the call."""

Key = tuple[int, int]
"""Place of a request in its call, and the seed of one of its replies."""
records: dict[Key, dict[int, StepSupport]] = {}
"""Tokens that could be drawn at each position of the replies under way, in each process that
computes; `worker_extension` passes them on."""
