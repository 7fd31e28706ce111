"""The rollout engine. Given the backend itself, it samples with the very module that is trained and
needs no sync."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property
from typing import ClassVar, Protocol, TypeVar

import torch

from rl_core.algorithms.metrics import Metric, MetricKind
from rl_core.data.prepare.items import PlayedItem
from rl_core.data_proto import DataProto, pad_rows
from rl_core.envs.turns import of_several_turns
from rl_core.errors import StaleEngine
from rl_core.models.causal_lm import CausalLMPolicy
from rl_core.models.chat.stop_ids import configured_stop_ids
from rl_core.models.checks.row_length import CONTEXT_KEY, row_limit_of
from rl_core.models.decoding.continuous.arrivals import Answers
from rl_core.models.decoding.decode import positions_of
from rl_core.models.decoding.request import Sampling
from rl_core.models.decoding.routing import ROUTING
from rl_core.models.decoding.token_choice import SUPPORT, Support
from rl_core.ranks.dispatch import Collect, Dispatch, Execute, distributed
from rl_core.ranks.rank_info import RankInfo
from rl_core.rollout.agents.play import Limits, play_agents
from rl_core.rollout.agents.stage import AgentStage
from rl_core.rollout.carried import AWAITED, begun_of, counts, unfinished_groups
from rl_core.rollout.chat.vision import ChatBundle, chat_format
from rl_core.rollout.episodes.episode import Episode
from rl_core.rollout.episodes.loop import run_episodes
from rl_core.rollout.episodes.replica_ranks import collect_parts, part_of, play_together
from rl_core.rollout.episodes.several_turns import check_several_turns
from rl_core.rollout.episodes.text_columns import text_columns
from rl_core.rollout.episodes.tools import check_shows_tools
from rl_core.rollout.episodes.unfinished import Unfinished
from rl_core.rollout.in_flight import InFlight
from rl_core.rollout.sample_ids import groups_of, id_columns
from rl_core.rollout.sampler import Generate, LocalSampler, Sampler
from rl_core.serving.served_model import KnownModel
from rl_core.train.sharding.meshes import Meshes
from rl_core.train.weights.buckets import WeightVersion
from rl_core.train.weights.order import TAKEN, TOKEN_VERSIONS, Order
from schemas.sections.evaluation_sets import SampledReplies
from schemas.sections.rollout import RolloutConfig
from schemas.sections.sampling import EvaluationSampling, SamplingConfig

P_co = TypeVar("P_co", covariant=True)
B_co = TypeVar("B_co", covariant=True)


class PolicyHolder(Protocol[P_co, B_co]):
    """Holder of the policy on this rank: the FSDPBackend that trains it, or a copy that receives
    weights."""

    rank_info: RankInfo
    device: torch.device
    meshes: Meshes

    @property
    def bundle(self) -> B_co:
        """The loaded model: the policy, and what is around it."""
        ...

    @property
    def policy(self) -> P_co:
        """The policy."""
        ...

    def weight_version(self, *, evaluation: bool = False) -> WeightVersion:
        """Return the version of the weights that `rollout_policy` (or `gathered`) samples with."""
        ...

    def rollout_policy(self) -> AbstractContextManager[P_co]:
        """Yield the policy with the weights of rollouts."""
        ...

    def gathered(self) -> AbstractContextManager[P_co]:
        """Yield the policy with the weights of evaluations."""
        ...


def check_version(
    holder: PolicyHolder[object, object], version: WeightVersion | None, *, evaluation: bool
) -> None:
    """Check that sampling uses the weights `version`; None accepts any.

    Raises: StaleEngine when it would use others.
    """
    held = holder.weight_version(evaluation=evaluation)
    if version is not None and version != held:
        raise StaleEngine(
            f"asked to sample with weights {version}, the rollout engine holds weights {held}; "
            "bring it up to date with WeightSync.sync first"
        )


class RolloutEngine:
    """Plays prompts against their environments with the current policy of one rank."""

    in_flight: InFlight | None = None
    """Weights that are renewed while it samples; None where they stand still."""
    keeps_pictures: ClassVar[bool] = False
    """True if its requests need the pictures of prompts themselves, besides their tensors."""

    def __init__(
        self,
        backend: PolicyHolder[CausalLMPolicy, ChatBundle],
        config: RolloutConfig,
        env_options: Mapping[str, Mapping[str, object]],
        template_kwargs: Mapping[str, object],
        seed: int,
    ) -> None:
        self.backend, self.config, self.env_options, self.seed = backend, config, env_options, seed
        self.tokenizer = backend.bundle.tokenizer
        self._unfinished: list[Unfinished] = []
        self.max_context_length, self._note = row_limit_of(
            backend.policy, config.max_context_length, CONTEXT_KEY
        )
        self.chat = chat_format(
            backend.bundle,
            template_kwargs,
            configured_stop_ids(backend.policy.language_model),
            keeps_pictures=self.keeps_pictures,
            keep_special_tokens=config.keep_special_tokens,
            keep_earlier_turns=config.episodes.keep_earlier_turns,
        )
        if config.router_replay:
            backend.policy.enable_router_replay()
        check_several_turns(self.chat, of_several_turns(env_options))
        check_shows_tools(self.chat, env_options)

    @cached_property
    def agents(self) -> AgentStage:
        """The agents among the environments, whose processes stay from step to step."""
        # A policy of the user's may not say how many words it knows.
        num_words = getattr(self.backend.policy, "num_known_words", None) or len(self.tokenizer)
        return AgentStage(
            self.env_options, KnownModel(self.chat, None, num_words), self.backend.device
        )

    @distributed(execute=Execute.RANK_ZERO)
    def notes(self) -> list[str]:
        """Return a note if the model's own limit on the length of rows is lower than the usual
        one."""
        return [] if self._note is None else [self._note]

    @distributed(Dispatch.DP_SCATTER, Collect.JOIN)
    def rollout(
        self,
        prompts: DataProto,
        step: int,
        version: WeightVersion | None = None,
        attempt: int = 0,
        order: Order | None = None,
    ) -> DataProto | None:
        """Sample a group of replies per prompt.

        Args: prompts: rows with the object column `item`. step, attempt: seed the sampling, so a
        repeated step repeats it. With `rollout.extra_prompts` the first groups to end are returned,
        and with `carry_over` the column `BEGUN` says what there is of some.
        version: the weights to sample with; unset takes the current ones. order: weights to take
        meanwhile, where they are renewed in flight; unset takes them as they come.
        Returns: rows of siblings with `input_ids, attention_mask, position_ids` [B, P+T],
        `response_mask, rollout_log_probs` [B, T], `rewards` [B] and the turns that earned them,
        `turn_rewards` [B, T], and the texts and names (`sample_ids`) as object columns, with
        `support` (a `Support` per row) where some tokens could not be drawn, and `routing` (see
        `ROUTING`) with router replay, and with weights in flight `TOKEN_VERSIONS` [B, T] and
        `TAKEN`; None on a rank that does not answer for its replica. Raises:
        StaleEngine when the engine holds other weights.
        """
        if self.in_flight is None or version is None:
            check_version(self.backend, version, evaluation=False)
        else:
            self.in_flight.begin(version, order)
        generator = self._generator(f"rollout-{attempt}" if attempt else "rollout", step)
        config = self.config
        sampling = self.sampling(config.max_new_tokens, config.temperature, config)
        sampling = replace(
            sampling,
            records_support=bool(config.leaves_out),
            records_routing=config.router_replay,
            version=self.backend.weight_version().number if config.carry_over else None,
        )
        num_kept = None
        if config.extra_prompts:
            left_out = 0 if prompts.meta_info.get(AWAITED) else config.extra_prompts
            num_kept = len(prompts) - left_out // self.backend.rank_info.dp_size
        return self._play(
            prompts,
            config.samples_per_prompt,
            sampling,
            generator,
            stop=config.stop or [],
            num_kept=num_kept,
        )

    @distributed()
    def unfinished(self) -> list[Unfinished]:
        """Return the groups that this rank's last rollout left for the next one
        (`rollout.carry_over`)."""
        return self._unfinished

    @distributed(Dispatch.DP_SCATTER, Collect.JOIN)
    def evaluate(
        self,
        prompts: DataProto,
        max_new_tokens: int,
        version: WeightVersion | None = None,
        choice: EvaluationSampling | None = None,
    ) -> DataProto | None:
        """Decode one reply per prompt, or several as a `SampledReplies` says, with the weights of
        evaluations; columns and errors as in `rollout`.

        Args: choice: how tokens are chosen; unset is greedy. Its unset `stop` means the rollout's.
        """
        if self.in_flight is not None and version is not None:
            self.in_flight.settle(version)
        check_version(self.backend, version, evaluation=True)
        choice = choice or EvaluationSampling()
        stop = (self.config.stop or []) if choice.stop is None else choice.stop
        sampling = self.sampling(max_new_tokens, choice.temperature, choice)
        several = choice if isinstance(choice, SampledReplies) else SampledReplies()
        generator = self._generator("evaluate", several.part)
        num = several.samples
        return self._play(prompts, num, sampling, generator, stop=stop, evaluation=True)

    def sampling(
        self, max_new_tokens: int, temperature: float, choice: SamplingConfig | None = None
    ) -> Sampling:
        """Return the sampling options, including where replies end. Args: choice: which tokens may
        be drawn; unset means all."""
        pad_id, choice = self.tokenizer.pad_token_id, choice or SamplingConfig()
        return Sampling(max_new_tokens, temperature, self._eos_ids(), pad_id, choice=choice)

    @property
    def rows_at_once(self) -> int:
        """Maximum number of rows in one call of the function that `decoding` yields."""
        return self.config.max_batch_size

    @contextmanager
    def decoding(
        self, sampling: Sampling, generator: torch.Generator, *, evaluation: bool = False
    ) -> Iterator[Sampler]:
        """Yield what answers requests with the current weights.

        Args: generator: source of its random numbers. evaluation: use the weights of evaluations,
        as a temperature of 0 always does.
        """
        evaluates = evaluation or not sampling.temperature
        weights = self.backend.gathered() if evaluates else self.backend.rollout_policy()
        renewal = None if evaluates else self.in_flight
        with weights as policy, ExitStack() as ready:
            if renewal is None:
                packed = ready.enter_context(policy.ready_to_decode())
            else:
                packed = ready.enter_context(renewal.of(policy)).packed
            given = policy, sampling, generator, self.backend.device, packed, self.chat.decode
            yield LocalSampler(*given, self.config.cuda_graphs, renewal)

    def _play(
        self,
        prompts: DataProto,
        group_size: int,
        sampling: Sampling,
        generator: torch.Generator,
        *,
        stop: list[str],
        evaluation: bool = False,
        num_kept: int | None = None,
    ) -> DataProto | None:
        meshes = self.backend.meshes
        items = part_of(list(enumerate(prompts.non_tensor_batch["item"])), meshes.sp_group)
        # A greedy baseline is of the same prompts.
        begun: list[Unfinished | None] = [None] * len(prompts)
        if not evaluation:
            begun = begun_of(prompts)
        start = time.perf_counter()
        with self.decoding(sampling, generator, evaluation=evaluation) as sampler:
            answers = sampler.answers() if self.config.episodes.continuous else None

            def play(reply: Generate) -> list[Episode]:
                seed = generator.initial_seed()
                given = items, begun, group_size, reply, answers, sampling, seed, stop
                return self._episodes(*given, evaluation, num_kept)

            episodes = play_together(meshes.tp_group, sampler, play)
        for episode in episodes:
            # Its work is done, and what it held (connections, processes) may not travel to another
            # rank.
            episode.env = None
        episodes = collect_parts(episodes, meshes.sp_group)
        given_up = [episode for episode in episodes if episode.given_up]
        episodes = [episode for episode in episodes if not episode.given_up]
        groups = groups_of(prompts)
        carries = self.config.carry_over > 0 and not evaluation
        if carries:
            self._unfinished = unfinished_groups(given_up, groups, begun)
        if not self.backend.rank_info.is_head:
            return None
        columns: dict[str, Sequence[object]] = {
            **id_columns([_group(groups[one.group], one.seat) for one in episodes])
        }
        if sampling.records_support:
            columns[SUPPORT] = [Support.joined(episode.supports) for episode in episodes]
        if sampling.records_routing:
            columns[ROUTING] = [episode.routing for episode in episodes]
        if self.in_flight is not None and not evaluation:
            columns[TAKEN] = [self.in_flight.note()] * len(episodes)
        metrics = {"rollout_s": Metric(MetricKind.MAX, time.perf_counter() - start, 1)}
        metrics |= self.own_metrics()
        if num_kept is not None:
            metrics |= counts(given_up, carries=carries)
        by_token = sampling.version is not None or TAKEN in columns
        return self._collect(episodes, columns, metrics, by_token)

    def own_metrics(self) -> dict[str, Metric]:
        """Return what this kind of engine counts in a rollout."""
        return {}

    def _episodes(
        self,
        items: list[tuple[int, PlayedItem]],
        begun: list[Unfinished | None],
        group_size: int,
        generate: Generate,
        answers: Answers | None,
        sampling: Sampling,
        seed: int,
        stop: list[str],
        evaluation: bool,
        num_kept: int | None,
    ) -> list[Episode]:
        """Play numbered prompts, by their environments or agents; groups are contiguous, and an
        episode of an agent may be several rows, except in evaluations."""
        of_agents = [one for one in items if self.agents.plays(one[1])]
        others = [one for one in items if not self.agents.plays(one[1])]
        config = self.config.episodes
        limits = self.max_context_length, self.rows_at_once, config
        options = self.env_options
        rows = [item for _, item in others]
        assert num_kept is None or not of_agents  # check_rollouts_of_agents
        played = run_episodes(
            rows,
            group_size,
            self.chat,
            generate,
            options,
            *limits,
            stop=stop,
            num_kept=num_kept,
            begun=[begun[place] for place, _ in others],
            most_carried=self.config.carry_over,
        )
        for episode in played:
            episode.group = others[episode.group][0]
        bounds = Limits(*limits, sampling, tuple(stop))
        given = of_agents, group_size, self.agents, generate, bounds, seed
        played += play_agents(*given, answers=answers, one_row=evaluation)
        return sorted(played, key=lambda episode: (episode.group, episode.seat))

    def _collect(
        self,
        episodes: list[Episode],
        columns: dict[str, Sequence[object]],
        metrics: dict[str, Metric],
        by_token: bool,
    ) -> DataProto:
        prompt_width, response_width = self._common_widths(
            max(len(episode.prompt_ids) for episode in episodes),
            max(1, *(len(episode.response_ids) for episode in episodes)),
        )
        pad = self.tokenizer.pad_token_id
        prompt_ids = pad_rows(
            [torch.tensor(e.prompt_ids) for e in episodes], pad, left=True, length=prompt_width
        )
        response_ids = pad_rows(
            [torch.tensor(e.response_ids).long() for e in episodes], pad, length=response_width
        )
        prompt_mask = pad_rows(
            [torch.ones(len(e.prompt_ids)).long() for e in episodes],
            0,
            left=True,
            length=prompt_width,
        )
        reply_mask = pad_rows(
            [torch.ones(len(e.response_ids)).long() for e in episodes], 0, length=response_width
        )
        attention_mask = torch.cat([prompt_mask, reply_mask], 1)
        failed = [not e.has_verdict for e in episodes]
        tensors = {
            "input_ids": torch.cat([prompt_ids, response_ids], 1),
            "attention_mask": attention_mask,
            "position_ids": positions_of(attention_mask),
            # A failed row has no verdict, so nothing is learnt from its tokens.
            "response_mask": pad_rows(
                [
                    torch.tensor(e.mask).long() * (not bad)
                    for e, bad in zip(episodes, failed, strict=True)
                ],
                0,
                length=response_width,
            ),
            "rollout_log_probs": pad_rows(
                [torch.tensor(e.log_probs) for e in episodes], 0.0, length=response_width
            ),
            "rewards": torch.tensor([e.reward for e in episodes], dtype=torch.float32),
            "turn_rewards": pad_rows(
                [torch.tensor(e.token_rewards) for e in episodes], 0.0, length=response_width
            ),
            "failed": torch.tensor(failed),
            "num_tokens": torch.tensor([sum(e.mask) for e in episodes]),
            "last_reply_tokens": torch.tensor([e.last_reply_tokens for e in episodes]),
            "num_turns": torch.tensor([e.num_turns for e in episodes]),
        }
        if by_token:
            tensors[TOKEN_VERSIONS] = pad_rows(
                [torch.tensor(e.versions).int() for e in episodes], 0, length=response_width
            )
        return DataProto.from_dict(
            tensors, columns | text_columns(episodes, self.chat.decode), {"metrics": metrics}
        )

    def _common_widths(self, prompt_width: int, response_width: int) -> tuple[int, int]:
        widths = self.backend.meshes.all_reduce_max([float(prompt_width), float(response_width)])
        return int(widths[0]), int(widths[1])

    def _eos_ids(self) -> tuple[int, ...]:
        return tuple(sorted(self.chat.stop_ids))

    def _generator(self, purpose: str, step: int) -> torch.Generator:
        # Ranks that share weight matrices decode the same rows with the same random numbers.
        stream = self.backend.rank_info.rank // self.backend.rank_info.tp_size
        text = f"{self.seed}:{purpose}:{step}:{stream}"
        digest = hashlib.sha256(text.encode()).digest()
        return torch.Generator(self.backend.device).manual_seed(int.from_bytes(digest[:7], "big"))


def _group(group: str, seat: str) -> str:
    """Return the group of a row: siblings that played the same seat."""
    return f"{group}/{seat}" if seat else group
