"""Token-by-token decoding: one prefill per prompt, its KV cache repeated for the siblings; finished
rows leave the batch.

Shapes: G siblings, R rows being decoded, P prompt positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from rl_core.data_proto import pad_rows
from rl_core.kernels import Packed
from rl_core.models.backbone import taken_by
from rl_core.models.checks.paths import Path
from rl_core.models.decoding.choosing import Choosing
from rl_core.models.decoding.continuous.equal_prompts import each_once, own_generators, side_by_side
from rl_core.models.decoding.continuous.first_to_end import FirstToEnd
from rl_core.models.decoding.continuous.renewal import Renewal, begun_reply, read_again, read_so_far
from rl_core.models.decoding.pick import pick
from rl_core.models.decoding.request import Reply, Request, Sampling, StopReason
from rl_core.models.decoding.routing import RoutingLog
from rl_core.models.decoding.stop_strings import TextOf
from rl_core.models.decoding.token_choice import StepSupport, Support, support_of
from rl_core.models.decoding.without_hooks import without_hooks
from rl_core.models.policy import TokenPolicy

if TYPE_CHECKING:
    from transformers.cache_utils import Cache

ROWS_IN_CACHE = 16
"""Number of rows of logits that are drawn from at once on a CPU."""


class Reader(Protocol):
    """Reads one more token of each row."""

    def step(self, tokens_R: Tensor, positions: Tensor, /) -> Tensor:
        """Append a token to each row. Returns: its hidden states after the last norm, [R, H]."""
        ...

    def select(self, rows: Tensor, /) -> None:
        """Keep these rows, ascending."""


@torch.no_grad()
def decode(
    policy: TokenPolicy,
    requests: list[Request],
    sampling: Sampling,
    generator: torch.Generator,
    device: torch.device,
    packed: Packed | None = None,
    *,
    graphs: bool = True,
    text_of: TextOf | None = None,
    enough: int | None = None,
    renewal: Renewal | None = None,
) -> list[Reply]:
    """Decode replies to every request in order, group by group.

    Args: policy: a CausalLMPolicy whose parameters are gathered. requests: token ids, ragged.
    packed: result of `packed_weights` for the policy's layers. graphs: allow recording of steps on
    a GPU. text_of: text of a reply's tokens, for requests with stop strings.
    enough: number of groups after whose end the others are given up (`StopReason.GIVEN_UP`); None
    waits for all, and so does a policy whose rows cannot be decoded beside each other.
    renewal: newer weights, which may come meanwhile; replies then say the version of each token,
    and `packed` is the renewal's. Rows that cannot be decoded beside each other are not read again.
    """
    replies: list[list[Reply]] = [[] for _ in requests]
    for places in _batches(policy, requests):
        some = iter(
            _decode(
                [requests[place] for place in places],
                policy,
                sampling,
                generator,
                device,
                packed,
                graphs,
                text_of,
                enough,
                renewal,
            )
        )
        for place in places:
            replies[place] = [next(some) for _ in range(requests[place].num_replies)]
    return [reply for group in replies for reply in group]


def _batches(policy: TokenPolicy, requests: list[Request]) -> list[list[int]]:
    """The requests that are decoded beside each other: all, or each by itself where rows of a batch
    disturb others."""
    if may_be_batched(policy):
        return [side_by_side(requests)]
    return [[place] for place in range(len(requests))]


def may_be_batched(policy: TokenPolicy) -> bool:
    """Return True if each row of a batch is computed as it would be by itself."""
    return policy.paths is None or policy.paths.why_not(Path.PADDED) is None


def _decode(
    requests: list[Request],
    policy: TokenPolicy,
    sampling: Sampling,
    generator: torch.Generator,
    device: torch.device,
    packed: Packed | None,
    graphs: bool,
    text_of: TextOf | None,
    enough: int | None,
    renewal: Renewal | None,
) -> list[Reply]:
    """Decode requests in one batch."""
    asked = [request for request in requests for _ in range(request.num_replies)]
    ends = [End(request, sampling, text_of) for request in asked]
    replies = []
    for request, end in zip(asked, ends, strict=True):
        replies.append(begun_reply(request, sampling.cut_off(end.limit)))
    so_far = [one.token_ids + reply.token_ids for one, reply in zip(asked, replies, strict=True)]
    draw = Draw(sampling, so_far, generator, policy.is_exact)
    draw.own = own_generators(requests, device)
    prompts = each_once([read_so_far(request) for request in requests])
    log = RoutingLog(prompts, records=sampling.records_routing)
    first_to_end, version = FirstToEnd(requests, enough), sampling.version
    batch = _Batch(policy, ends, replies, draw, first_to_end, log, renewal, version)
    with log.in_effect():
        while batch.rows:
            packed = packed if renewal is None else renewal.packed
            reading = _reading(policy, prompts, sampling.pad_id, device, packed, graphs)
            with reading as (hidden, last, read):
                log.add_prompts()
                batch.go_on(hidden, last, read)
            if batch.rows and renewal is not None:
                renewal.load()
                left = [(asked[row], replies[row]) for row in batch.rows]
                prompts = [read_again(request, reply) for request, reply in left]
    recorded = zip(replies, draw.supports(len(replies)), log.replies(), strict=True)
    for reply, support, routing in recorded:
        if support is not None and reply.support is not None:
            support = Support.joined([reply.support, support])
        reply.support, reply.routing = support, routing
    return replies


class _Batch:
    """Replies that are decoded beside each other. `rows` are the numbers of those that go on."""

    def __init__(
        self,
        policy: TokenPolicy,
        ends: Sequence[End],
        replies: list[Reply],
        draw: Draw,
        first_to_end: FirstToEnd,
        log: RoutingLog,
        renewal: Renewal | None,
        version: int | None,
    ) -> None:
        self.policy, self.ends, self.replies, self.draw = policy, ends, replies, draw
        self.first_to_end, self.log = first_to_end, log
        self.renewal, self._version = renewal, version
        self.rows = list(range(len(replies)))
        self.may_be_read_again = may_be_batched(policy)

    @property
    def version(self) -> int | None:
        """Number of the weights, if replies are to say it."""
        return self._version if self.renewal is None else self.renewal.version

    def go_on(self, hidden: Tensor, last_R: Tensor, read: Reader) -> None:
        """Decode until no row goes on, or newer weights are due. Args: hidden, last_R, read: as of
        `_reading`, for these rows."""
        for step in count():
            tokens_R, log_probs_R = self.draw(self.policy.logits(hidden), self.rows)
            staying = self._hear(tokens_R, log_probs_R)
            if not staying or self.first_to_end.is_over(self.rows, staying, self.replies):
                self.rows = []
                return
            if len(staying) < len(self.rows):
                kept = torch.tensor(staying, device=tokens_R.device)
                read.select(kept)
                self.draw.select(kept)
                self.rows = [self.rows[place] for place in staying]
                last_R, tokens_R = last_R[kept], tokens_R[kept]
            if self.renewal is not None and self.may_be_read_again and self.renewal.is_due():
                return
            hidden = read.step(tokens_R, self.policy.reply_positions(last_R, step))
            self.log.add_step(self.rows)

    def _hear(self, tokens_R: Tensor, log_probs_R: Tensor) -> list[int]:
        """Append a token to each row's reply. Returns: the places of the rows that go on."""
        staying = []
        drawn = zip(self.rows, tokens_R.tolist(), log_probs_R.tolist(), strict=True)
        for place, (row, token, log_prob) in enumerate(drawn):
            if (version := self.version) is not None:
                self.replies[row].versions.append(version)
            if self.ends[row].goes_on(self.replies[row], token, log_prob):
                staying.append(place)
        return staying


@torch.no_grad()
def forced_log_probs(
    policy: TokenPolicy, groups: Sequence[tuple[Sequence[int], Sequence[Sequence[int]]]]
) -> list[list[float]]:
    """Return decoding's log-probabilities of given responses to each prompt, token by token.

    transformers' own cache is used; faster steps are compared with it where they are used. Rows
    leave the batch as their responses end, as in `decode`.
    """
    requests = [Request(list(prompt), len(responses), room=1) for prompt, responses in groups]
    responses = [list(response) for _, group in groups for response in group]
    log_probs: list[list[float]] = [[] for _ in responses]
    rows = list(range(len(responses)))
    device = next(policy.parameters()).device
    with _reading(policy, requests, 0, device, None, False, plain=False) as (hidden, last, read):
        for step in range(max(map(len, responses))):
            all_RV = policy.logits(hidden).float().log_softmax(-1)
            tokens = [responses[row][step] for row in rows]
            for place, row in enumerate(rows):
                log_probs[row].append(float(all_RV[place, tokens[place]]))
            staying = [place for place, row in enumerate(rows) if len(responses[row]) > step + 1]
            if not staying:
                break
            kept = torch.tensor(staying, device=device)
            if len(staying) < len(rows):
                read.select(kept)
            rows, last = [rows[place] for place in staying], last[kept]
            tokens_R = torch.tensor(tokens, device=device)[kept]
            hidden = read.step(tokens_R, policy.reply_positions(last, step))
    return log_probs


@contextmanager
def _reading(
    policy: TokenPolicy,
    requests: list[Request],
    pad_id: int,
    device: torch.device,
    packed: Packed | None,
    graphs: bool,
    *,
    plain: bool = True,
) -> Iterator[tuple[Tensor, Tensor, Reader]]:
    """Read the prompts, each once, for the block, with their siblings side by side.

    Yields: the hidden states [R, H] and the position [R] of each row's last token, and the reader
    of further tokens. Args: plain: allow this project's decoders, if they give the model's results.
    """
    from rl_core.models.decoding.next_states import ByRecomputing, ByTransformers, next_states

    backbone = policy.backbone
    prompts = read_prompts(policy, requests, pad_id, device)
    counts_P, attention_BP = prompts.counts_P, prompts.attention_BP
    hidden = prompts.states_BPH[:, -1].repeat_interleave(counts_P, 0)
    last = prompts.last_P.repeat_interleave(counts_P)
    with without_hooks(policy.language_model):
        read: Reader
        if prompts.cache is None:
            rows = (one.repeat_interleave(counts_P, 0) for one in (prompts.ids_BP, attention_BP))
            read = ByRecomputing(backbone, *rows, together=may_be_batched(policy))
        elif not plain:
            read = ByTransformers(backbone, prompts.cache, counts_P, attention_BP)
        else:
            probe = prompts.ids_BP[:, -1], policy.reply_positions(prompts.last_P, 0)
            read = next_states(
                backbone, prompts.cache, counts_P, attention_BP, packed or {}, probe, graphs=graphs
            )
        yield hidden, last, read


@dataclass(frozen=True)
class ReadPrompts:
    """Prompts after the prefill, padding first."""

    counts_P: Tensor
    """Number of replies to each prompt."""
    ids_BP: Tensor
    attention_BP: Tensor
    states_BPH: Tensor
    """Hidden states after the last norm."""
    last_P: Tensor
    """Position of each prompt's last token."""
    cache: Cache | None
    """None for a model whose cache cannot be used."""


def read_prompts(
    policy: TokenPolicy, requests: list[Request], pad_id: int, device: torch.device
) -> ReadPrompts:
    """Run the model over the prompts of requests, each once, in one batch."""
    prompts = [request.token_ids for request in requests]
    counts_P = torch.tensor([request.num_replies for request in requests], device=device)
    lengths_P = torch.tensor([len(prompt) for prompt in prompts], device=device)
    ids_BP = pad_rows([torch.tensor(prompt) for prompt in prompts], pad_id, left=True).to(device)
    width = ids_BP.shape[1]
    attention_BP = (torch.arange(width, device=device)[None] >= width - lengths_P[:, None]).long()
    media_B = [request.media for request in requests]
    inputs = policy.inputs(ids_BP, attention_BP, positions_of(attention_BP), media_B)
    uses_cache = policy.paths is None or policy.paths.why_not(Path.CACHED) is None
    backbone = policy.backbone
    output = backbone(**taken_by(backbone, inputs), use_cache=uses_cache)
    # Positions may have several axes; they agree at the last token, which is text.
    last_P = inputs["position_ids"][..., -1].reshape(-1, len(prompts))[0]
    cache = output.past_key_values if uses_cache else None
    return ReadPrompts(counts_P, ids_BP, attention_BP, output.last_hidden_state, last_P, cache)


class End:
    """End of the replies to one request: a token, a stop string or a limit."""

    def __init__(self, request: Request, sampling: Sampling, text_of: TextOf | None) -> None:
        self.limit, self.eos_ids = sampling.limit(request), sampling.eos_ids
        self.stop, self.text_of = request.stop, text_of
        self.at_least = sampling.choice.min_new_tokens

    def goes_on(self, reply: Reply, token: int, log_prob: float) -> bool:
        """Append a token to a reply. Returns: True if more may follow."""
        reply.token_ids.append(token)
        reply.log_probs.append(log_prob)
        if token in self.eos_ids:
            reply.stop_reason = StopReason.EOS
            return False
        if self.stop is not None and len(reply.token_ids) > self.at_least:
            assert self.text_of is not None, "stop strings are found in text"
            if self.stop.end(reply.token_ids, self.text_of):
                reply.stop_reason = StopReason.STOP
                return False
        return len(reply.token_ids) < self.limit


class Draw:
    """Draws a token of each row, from the whole distribution or a part of it."""

    def __init__(
        self,
        sampling: Sampling,
        prompts_R: Sequence[Sequence[int]],
        generator: torch.Generator,
        exact: bool,
    ) -> None:
        self.temperature, self.generator, self.exact = sampling.temperature, generator, exact
        self.own: dict[int, torch.Generator] = {}
        """Generators of the replies with a seed of their own."""
        self.choosing = None
        if not sampling.choice.keeps_all:
            self.choosing = Choosing(
                sampling.choice, sampling.temperature, sampling.eos_ids, prompts_R
            )
        self.steps: dict[int, list[StepSupport | None]] | None = None
        if sampling.records_support:
            self.steps = {row: [] for row in range(len(prompts_R))}

    def __call__(self, logits_RV: Tensor, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the tokens [R] and their log-probabilities [R]. Args: rows: numbers of the
        replies."""
        random_R1 = self._random(logits_RV, rows)
        if self.choosing is None:
            return _draw(logits_RV, self.temperature, random_R1, exact=self.exact)
        tokens_R, log_probs_R, supports = self.choosing.draw(logits_RV, random_R1)
        if self.steps is not None:
            for row, support in zip(rows, supports, strict=True):
                self.steps[row].append(support)
        return tokens_R, log_probs_R

    def _random(self, logits_RV: Tensor, rows: Sequence[int]) -> Tensor:
        if not self.own:
            return _random(logits_RV, self.generator)
        generators = [self.own.get(row, self.generator) for row in rows]
        return torch.cat([_random(logits_RV[:1], one) for one in generators])

    def scores(self, logits_RV: Tensor) -> Tensor:
        """Return the scores [R, V] whose softmax the next tokens are drawn by."""
        if self.choosing is not None:
            return self.choosing.scores(logits_RV)[0]
        scores_RV = logits_RV.float()
        return scores_RV / self.temperature if self.temperature not in (0.0, 1.0) else scores_RV

    def select(self, kept: Tensor) -> None:
        """Keep these rows, ascending."""
        if self.choosing is not None:
            self.choosing.select(kept)

    def supports(self, num_replies: int) -> list[Support | None]:
        """Return the recorded supports of each reply; None if they are not recorded."""
        if self.steps is None:
            return [None] * num_replies
        return [support_of(self.steps[row]) for row in range(num_replies)]


def positions_of(attention: Tensor) -> Tensor:
    """Return position ids under left padding: counted from the first real token; pads get 0."""
    return (attention.cumsum(-1) - 1).clamp_min(0)


def _draw(
    logits_RV: Tensor, temperature: float, random_R1: Tensor, *, exact: bool = False
) -> tuple[Tensor, Tensor]:
    """Draw a token of each row and return it with its log-probability. Args: exact: use the
    operations of training."""
    # A few rows fit into the processor's cache; all rows together would not, and their memory would
    # go back to the system each time.
    size = ROWS_IN_CACHE if logits_RV.device.type == "cpu" else len(logits_RV)
    parts = zip(logits_RV.split(size), random_R1.split(size), strict=True)
    drawn = [_draw_rows(part_RV.float(), temperature, random, exact) for part_RV, random in parts]
    return torch.cat([tokens for tokens, _ in drawn]), torch.cat(
        [log_probs for _, log_probs in drawn]
    )


def _random(logits_RV: Tensor, generator: torch.Generator) -> Tensor:
    """Return a random number between 0 and 1 for each row, [R, 1]."""
    return torch.rand(
        len(logits_RV), 1, generator=generator, device=logits_RV.device, dtype=torch.float64
    )


def _draw_rows(
    logits_RV: Tensor, temperature: float, random_R1: Tensor, exact: bool
) -> tuple[Tensor, Tensor]:
    scores_RV = logits_RV / temperature if temperature not in (0.0, 1.0) else logits_RV
    shares_RV = scores_RV.softmax(-1)
    tokens_R = pick(shares_RV, random_R1) if temperature else shares_RV.argmax(-1)
    if exact:
        # The same operations as in training.
        return tokens_R, scores_RV.log_softmax(-1).gather(-1, tokens_R[:, None])[:, 0]
    return tokens_R, shares_RV.gather(-1, tokens_R[:, None])[:, 0].log()
