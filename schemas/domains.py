"""The kinds of training, and all that differs between them, in one table.

Code asks for what it needs to know (`recipe.domain.traits.rows`), never which domain it has before
it. A new domain is therefore a member of `Domain` and a row of `TRAITS`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType

from schemas.contract import SchemaName


class Domain(StrEnum):
    """What a policy produces; selects the trainer."""

    TEXT = "text"
    """Tokens of a language model, single- or multi-turn."""
    VISION = "vision"
    """Tokens of a vision-language model, whose prompts show pictures."""
    PREFERENCE = "preference"
    """Nothing is sampled: rows hold a better and a worse answer each."""
    DIFFUSION = "diffusion"
    """Pictures or videos of a flow-matching model, denoised from prompts."""
    PE = "pe"
    """A prompt enhancer: a language model's rewrites of prompts, and a flow-matching model's
    pictures of them.
    """
    UNIFIED = "unified"
    """A unified model: one module that writes a plan in tokens, and draws it by flow matching."""

    @property
    def traits(self) -> "Traits":
        """Its row of the table."""
        return TRAITS[self]


class ModelKind(StrEnum):
    """What `model.path` names, which decides what loads it."""

    TEXT = "text"
    """A language model; of one that also sees, the part that reads and writes."""
    SEEING = "seeing"
    """A language model with everything it has, such as eyes."""
    PIPELINE = "pipeline"
    """A flow-matching model with its text encoders, as diffusers keeps it."""
    UNIFIED = "unified"
    """A model that writes and draws, which its family loads."""


class Page(StrEnum):
    """What the demo page is for."""

    CHAT = "chat"
    """Messages in, a reply out."""
    DRAW = "draw"
    """A prompt in, a picture out."""


@dataclass(frozen=True)
class Curve:
    """What of each step is drawn as a line."""

    mean: str
    """Metric of the line."""
    label: str
    spread: str | None = None
    """Metric of the band around it."""
    title: str = "Reward and held-out accuracy"
    scored: bool = False
    """Held-out rows are drawn by their mean scores, not by the share of full reward."""


REWARD = Curve("reward_mean", "sampled reward, mean", "reward_std")
SCORED = replace(REWARD, title="Reward and held-out scores", scored=True)
ENHANCED = replace(SCORED, mean="text/reward_mean", label="rewrites' reward, mean", spread="text/reward_std")
PLANNED = replace(ENHANCED, label="plans' reward, mean")
PAIRS = Curve(
    "reward_accuracy",
    "training pairs told apart, share",
    title="Pairs told apart, in training and held out",
)


@dataclass(frozen=True)
class Traits:
    """What is particular to a domain."""

    trainer: str
    """`module:Class` of its `rl_core.trainers.base.Trainer`."""
    rows: SchemaName
    """Contract of its rows, by which they are also read and prepared."""
    model: ModelKind
    samples_tokens: bool
    """Whether the recipe's algorithm trains tokens that the policy sampled."""
    curve: Curve
    """How a run of it is drawn."""
    block: str | None = None
    """Block of the recipe that it needs, and no other domain has."""
    with_vllm: bool = False
    """Whether vLLM can sample its policy."""
    has_scores: bool = True
    """Whether evaluations give scores besides `accuracy` and `mean_reward`."""
    page: Page | None = None
    """Its demo page, if there is one."""


TRAITS: Mapping[Domain, Traits] = MappingProxyType(
    {
        Domain.TEXT: Traits(
            trainer="rl_core.trainers.text:TextTrainer",
            rows=SchemaName.PROMPT,
            model=ModelKind.TEXT,
            samples_tokens=True,
            curve=REWARD,
            with_vllm=True,
            has_scores=False,
            page=Page.CHAT,
        ),
        Domain.VISION: Traits(
            trainer="rl_core.trainers.vision:VisionTrainer",
            rows=SchemaName.PROMPT,
            model=ModelKind.SEEING,
            samples_tokens=True,
            curve=REWARD,
            has_scores=False,
        ),
        Domain.PREFERENCE: Traits(
            trainer="rl_core.trainers.preference:PreferenceTrainer",
            rows=SchemaName.PREFERENCE,
            model=ModelKind.SEEING,
            samples_tokens=False,
            curve=PAIRS,
            page=Page.CHAT,
        ),
        Domain.DIFFUSION: Traits(
            trainer="rl_core.trainers.diffusion:DiffusionTrainer",
            rows=SchemaName.MEDIA,
            model=ModelKind.PIPELINE,
            samples_tokens=False,
            curve=SCORED,
            page=Page.DRAW,
        ),
        Domain.PE: Traits(
            trainer="rl_core.trainers.prompt_enhancer:PromptEnhancerTrainer",
            rows=SchemaName.MEDIA,
            model=ModelKind.TEXT,
            samples_tokens=True,
            curve=ENHANCED,
            block="tracks",
            page=Page.CHAT,
        ),
        Domain.UNIFIED: Traits(
            trainer="rl_core.trainers.unified:UnifiedTrainer",
            rows=SchemaName.MEDIA,
            model=ModelKind.UNIFIED,
            samples_tokens=True,
            curve=PLANNED,
            block="unified",
        ),
    }
)
