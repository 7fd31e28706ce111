"""Several servers of somebody else as one: each request goes to the server with the fewest
tokens before it, those included that this server alone would have to read again.

A server that fails in a rollout is left out, and what it was asked goes to the others. It counts
again once it has loaded the next weights. One that was started again in between loads the present
ones, and what it sampled with its first ones is sampled again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from rl_core.errors import Unreachable
from rl_core.rollout.servers.served import AT_ONCE, Served
from rl_core.rollout.vllm_process.server import MOMENT_S, Drawn, Names, Prompt
from schemas.sections.sampling import SamplingConfig

if TYPE_CHECKING:
    from rl_core.models.export.checksums import Checksum

BLOCK = 16
"""Tokens of a block of vLLM's KV cache, which is found again whole or not at all."""


_Question: TypeAlias = tuple[Prompt, float, Sequence[int], SamplingConfig]


@dataclass
class _Member:
    """A server, and what is known of its work."""

    served: Served
    in_flight: int = 0
    """Tokens that it has still to read and to write, if every reply is as long as it may be."""
    read: set[int] = field(default_factory=set)
    """Beginnings of contexts that it has read in this rollout, by their hashes."""
    why_down: str | None = None
    epoch: int = 0
    """Number of times that its weights came into doubt."""

    def num_unread(self, token_ids: Sequence[int], starts: Sequence[int]) -> int:
        """Return how many tokens of a context it has to read. Args: starts: hashes of the
        context's beginnings, a block longer each."""
        blocks = 0
        for start in starts:
            if start not in self.read:
                break
            blocks += 1
        return len(token_ids) - BLOCK * blocks


@dataclass(frozen=True)
class _Answer:
    """Replies to a prompt, and whose they are."""

    drawn: list[Drawn]
    member: _Member
    epoch: int
    """Value of the member's `epoch` when it was asked."""


class BalancedServers:
    """The servers of one rank, in place of a `Served`. Args: servers: at least one; they share
    one folder of weights.

    Raises: RecipeError when one is not as needed; Unreachable when none answers.
    """

    def __init__(self, servers: Sequence[Served]) -> None:
        self._members = [_Member(served) for served in servers]
        self._changed = threading.Lock()
        self._asked: dict[int, tuple[_Question, Future[_Answer]]] = {}
        """Single replies under way, by their numbers."""
        self._pool = ThreadPoolExecutor(AT_ONCE * len(self._members), "server request")
        try:
            self._on_each(lambda member: True, lambda served: served.connect())
        except BaseException:
            self.close()
            raise

    def num_left_out(self) -> int:
        """Number of servers that have failed since they last loaded weights."""
        return sum(member.why_down is not None for member in self._members)

    def call(self, method: str, *args: object) -> Any:
        """Call a method, as of an object in another process."""
        return getattr(self, method)(*args)

    def begin(self) -> None:
        """Drop the caches of earlier rollouts, so that a repeat is equal. Raises: Unreachable when
        no server answers."""
        for _, asked in self._asked.values():
            asked.cancel()
        self._asked.clear()
        for member in self._members:
            member.read.clear()
            self._renew(member)
        self._on_each(lambda member: member.why_down is None, lambda served: served.begin())

    def generate(
        self,
        prompts: Sequence[Prompt],
        temperature: float,
        eos_ids: Sequence[int],
        choice: SamplingConfig,
    ) -> list[Drawn]:
        """Return replies to every prompt in order, group by group. Args: as of `VllmServer`.
        Raises: Unreachable when no server is left."""

        def ask(number: int) -> _Answer:
            return self._answer(prompts[number], temperature, eos_ids, choice)

        answers: dict[int, _Answer] = {}
        left = list(range(len(prompts)))
        while left:
            answers |= zip(left, self._pool.map(ask, left), strict=True)
            left = self._doubtful(answers)
        return [one for number in range(len(prompts)) for one in answers[number].drawn]

    def put(
        self,
        prompts: Mapping[int, Prompt],
        temperature: float,
        eos_ids: Sequence[int],
        choice: SamplingConfig,
    ) -> None:
        """Ask for single replies to some prompts, by their numbers, besides those under way. Args:
        as of `generate`."""
        for number, prompt in prompts.items():
            given = prompt, temperature, eos_ids, choice
            self._asked[number] = given, self._pool.submit(self._answer, *given)

    def advance(self, given_up: Sequence[int]) -> dict[int, Drawn]:
        """Wait for `MOMENT_S`, or until a reply has ended. Args: given_up: numbers that are not
        waited for any more; what a server works on already it ends. Returns: the replies that have
        ended, by their numbers. Raises: Unreachable when no server is left."""
        for number in given_up:
            self._asked.pop(number)[1].cancel()
        asked = [future for _, future in self._asked.values()]
        wait(asked, MOMENT_S, return_when=FIRST_COMPLETED)
        ended = {number: one for number, (_, one) in self._asked.items() if one.done()}
        answers = {number: one.result() for number, one in ended.items()}
        for number in self._doubtful(answers):
            given, _ = self._asked[number]
            self._asked[number] = given, self._pool.submit(self._answer, *given)
            del answers[number]
        for number in answers:
            del self._asked[number]
        return {number: answer.drawn[0] for number, answer in answers.items()}

    def _answer(
        self, prompt: Prompt, temperature: float, eos_ids: Sequence[int], choice: SamplingConfig
    ) -> _Answer:
        while True:
            with self._place(prompt) as member:
                try:
                    epoch = member.epoch
                    drawn = member.served.replies(prompt, temperature, eos_ids, choice)
                    return _Answer(drawn, member, epoch)
                except Unreachable as error:
                    self._leave_out(member, error)

    def _doubtful(self, answers: Mapping[int, _Answer]) -> list[int]:
        """Return the numbers of answers that may be of other weights than the run's: their server
        was started again meanwhile, or is gone."""
        for member in {id(one.member): one.member for one in answers.values()}.values():
            self._renew(member)
        return [number for number, one in answers.items() if one.epoch != one.member.epoch]

    def _renew(self, member: _Member) -> None:
        """Have a server load the run's weights if it was started again since it loaded some."""
        if member.why_down is not None:
            return
        try:
            if not member.served.renewed():
                return
        except Unreachable as error:
            self._leave_out(member, error)
        else:
            logging.getLogger(__name__).warning(
                f"rollout.server.urls: {member.served.url} was started again, with its first "
                "weights; it has loaded the run's, and what it sampled meanwhile is sampled again"
            )
            member.epoch += 1

    def reload(self, expected: Mapping[Names, Checksum], dtype: str, where: str) -> None:
        """Have every server load the weights that the file now holds, those included that failed.

        Args: as of `VllmServer`. Raises: WeightMismatch before anything is loaded; Unreachable when
        no server loads them.
        """
        self._members[0].served.pass_on(expected, dtype, where)
        for member in self._members:
            member.read.clear()  # of contexts nothing is kept beyond new weights
        self._on_each(lambda member: True, lambda served: served.load())

    def close(self) -> None:
        """Close the connections; the servers stay."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for member in self._members:
            member.served.close()

    @contextmanager
    def _place(self, prompt: Prompt) -> Iterator[_Member]:
        """Choose a server, and count the request as its own during the block. Raises: Unreachable
        when there is none."""
        token_ids, starts = prompt.token_ids, _starts(prompt.token_ids)
        with self._changed:
            up = self._up()
            unread = [member.num_unread(token_ids, starts) for member in up]
            waits = [member.in_flight + more for member, more in zip(up, unread, strict=True)]
            at = waits.index(min(waits))
            member, tokens = up[at], unread[at] + prompt.num_replies * prompt.max_new_tokens
            member.in_flight += tokens
            # The next request finds them read, or waits for the one that reads them.
            member.read.update(starts)
        try:
            yield member
        finally:
            with self._changed:
                member.in_flight -= tokens

    def _up(self) -> list[_Member]:
        up = [member for member in self._members if member.why_down is None]
        if not up:
            said = "; ".join(str(member.why_down) for member in self._members)
            raise Unreachable(f"no server of rollout.server.urls is left: {said}")
        return up

    def _on_each(self, chosen: Callable[[_Member], bool], method: Callable[[Served], None]) -> None:
        """Call a method of some servers side by side; those that fail are left out, the others
        count."""

        def attempt(member: _Member) -> None:
            try:
                method(member.served)
            except Unreachable as error:
                self._leave_out(member, error)
            else:
                with self._changed:
                    member.why_down = None

        some = [member for member in self._members if chosen(member)]
        with ThreadPoolExecutor(len(self._members)) as pool:
            for _ in pool.map(attempt, some):
                pass
        self._up()

    def _leave_out(self, member: _Member, error: Unreachable) -> None:
        with self._changed:
            is_new, member.why_down = member.why_down is None, str(error)
            member.read.clear()
            # It may have been started again, and have answered, before it failed.
            member.epoch += 1
        if is_new:
            logging.getLogger(__name__).warning(
                f"rollout.server.urls: {error}; the others sample in its place until it loads "
                "weights again"
            )


def _starts(token_ids: Sequence[int]) -> list[int]:
    """Return the hashes of a context's beginnings of one block, two blocks, and so on."""
    starts, before = list[int](), 0
    for end in range(BLOCK, len(token_ids) + 1, BLOCK):
        before = hash((before, *token_ids[end - BLOCK : end]))
        starts.append(before)
    return starts
