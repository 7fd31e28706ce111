"""A reply that a server samples, with one request or with several: what it is sent, and where the
reply ends."""

from __future__ import annotations

import numpy as np

from rl_core.errors import WorkerError
from rl_core.models.decoding.continuous.renewal import begun_reply
from rl_core.models.decoding.request import Request, Sampling, StopReason
from rl_core.models.decoding.stop_strings import TextOf
from rl_core.models.decoding.token_choice import StepSupport, Support, support_of
from rl_core.rollout.vllm_process.server import Drawn, Prompt

SEEDS = 2**62
"""Seeds are below this."""
STRIDE = 0x9E3779B97F4A7C15
"""Between the seeds of a reply's requests, for each token in between; odd and large, so that no
two requests of a rollout share one."""


class ServerReply:
    """A reply to a request, which may have been begun, as far as it has come.

    Args: seed: of its random numbers. sampling: how tokens are drawn. text_of: text of a reply's
    tokens. piece: most tokens of an answer; None asks for all at once.
    """

    def __init__(
        self,
        request: Request,
        seed: int,
        sampling: Sampling,
        text_of: TextOf,
        piece: int | None = None,
    ) -> None:
        self.request, self.sampling, self._text_of, self._piece = request, sampling, text_of, piece
        self._seed, self._limit = seed, sampling.limit(request)
        self._steps: list[StepSupport | None] = []
        self.reply = begun_reply(request, sampling.cut_off(self._limit))

    @property
    def _num_asked(self) -> int:
        """Number of tokens of the next answer, if nothing ends it."""
        left = self._limit - len(self.reply.token_ids)
        return left if self._piece is None else min(left, self._piece)

    def prompt(self, num_replies: int) -> Prompt:
        """Return what a server is asked: to go on after the prompt and the reply so far.

        Args: num_replies: this one and those after it, whose seeds count up from its own.
        """
        request, so_far = self.request, self.reply.token_ids
        stop = () if request.stop is None else request.stop.strings
        pictures = () if request.media is None else request.media.pictures
        assert pictures or request.media is None, "the pictures were not kept"
        seed = (self._seed + STRIDE * len(so_far)) % SEEDS
        context = request.token_ids + so_far
        return Prompt(context, num_replies, self._num_asked, seed, stop, pictures)

    def add(self, drawn: Drawn, version: int | None) -> bool:
        """Append a server's answer, up to where the project's own engines end the reply.

        Args: version: number of the weights that drew it, if replies say it. Returns: True if the
        reply goes on. Raises: WorkerError when nothing tells why the answer ended.
        """
        reply, before, asked = self.reply, len(self.reply.token_ids), self._num_asked
        if not drawn.ended and not drawn.stopped and len(drawn.token_ids) != asked:
            raise WorkerError(
                f"an inference server ended a reply after {len(drawn.token_ids)} of {asked} tokens "
                "without saying why"
            )
        reply.token_ids = reply.token_ids + drawn.token_ids
        length, at_least = len(reply.token_ids), self.sampling.choice.min_new_tokens
        if drawn.ended:
            reply.stop_reason = StopReason.EOS
        elif drawn.stopped:
            reply.stop_reason = StopReason.STOP
        goes_on = not drawn.ended and not drawn.stopped and length < self._limit
        if self.request.stop is not None:
            # Texts of the two may differ in the control tokens that environments do not read, and
            # a server does not see a string that began with an earlier request.
            end = self.request.stop.cut(reply.token_ids, max(at_least, before), self._text_of)
            if end is not None and (end < length or not drawn.ended):
                length, reply.stop_reason, goes_on = end, StopReason.STOP, False
        num_new = length - before
        reply.token_ids = reply.token_ids[:length]
        reply.log_probs = reply.log_probs + drawn.log_probs[:num_new]
        if version is not None:
            reply.versions += [version] * num_new
        self._note_steps(drawn, before, num_new)
        if not goes_on:
            self.finish()
        return goes_on

    def finish(self) -> None:
        """Give the reply the record of the tokens that could be drawn, if there is one."""
        if not self.sampling.records_support:
            return
        support = support_of(self._steps)
        before = self.reply.support
        self.reply.support = support if before is None else Support.joined([before, support])

    def _note_steps(self, drawn: Drawn, before: int, num_new: int) -> None:
        if drawn.support is not None:
            self._steps += drawn.support[:num_new]
            return
        at_least = self.sampling.choice.min_new_tokens
        ends = StepSupport(np.array(self.sampling.eos_ids, np.int32), is_kept=False)
        for place in range(before, before + num_new):
            self._steps.append(ends if place < at_least else None)
