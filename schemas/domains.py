"""The kinds of training, and all that differs between them, in one table.

Code asks for what it needs to know (`recipe.domain.traits.rows`), never which domain it has before
it. A new domain is therefore a member of `Domain` and a row of `TRAITS`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType

from schemas.rows.contract import SchemaName


class Domain(StrEnum):
    """Kind of output that a policy produces; selects the trainer."""

    TEXT = "text"
    """Text from a language model, single- or multi-turn."""
    VISION = "vision"
    """Text from a vision-language model, whose prompts contain images."""
    PREFERENCE = "preference"
    """Preference learning without sampling: each row holds a better and a worse answer."""
    REWARD_MODEL = "reward_model"
    """Training of a reward model, which scores whole conversations, on pairs of answers."""
    SFT = "sft"
    """Supervised fine-tuning without sampling: each row holds the answers to learn."""
    DIFFUSION = "diffusion"
    """Images or videos from a flow-matching model, denoised from prompts."""
    PE = "pe"
    """Prompt enhancement: a language model rewrites prompts, and a flow-matching model draws the
    rewrites."""
    UNIFIED = "unified"
    """A unified model: one module that writes a plan in tokens and draws it by flow matching."""

    @property
    def traits(self) -> "Traits":
        """Its row of the table."""
        return TRAITS[self]


class ModelKind(StrEnum):
    """Kind of model that `model.path` names, which decides what loads it."""

    TEXT = "text"
    """A language model; of one that also sees, the part that reads and writes."""
    SEEING = "seeing"
    """A language model with everything it has, such as eyes."""
    PIPELINE = "pipeline"
    """A flow-matching model with its text encoders, as diffusers keeps it."""
    UNIFIED = "unified"
    """A model that writes and draws, which its family loads."""


class Page(StrEnum):
    """Use of the demo page."""

    CHAT = "chat"
    """Messages in, a reply out."""
    DRAW = "draw"
    """A prompt in, a picture out."""


@dataclass(frozen=True)
class Curve:
    """Metrics of a step that are drawn as the learning curve."""

    mean: str
    """Metric of the line."""
    label: str
    spread: str | None = None
    """Metric of the band around the line."""
    title: str = "Reward and held-out accuracy"
    scored: bool = False
    """Draw held-out rows by their mean scores instead of the share of full reward."""


REWARD = Curve("reward_mean", "sampled reward, mean", "reward_std")
SCORED = replace(REWARD, title="Reward and held-out scores", scored=True)
ENHANCED = replace(
    SCORED, mean="text/reward_mean", label="rewrites' reward, mean", spread="text/reward_std"
)
PLANNED = replace(ENHANCED, label="plans' reward, mean")
PAIRS = Curve(
    "reward_accuracy",
    "training pairs told apart, share",
    title="Pairs told apart, in training and held out",
)


GIVEN = Curve("loss", "training loss", title="Training loss, and held-out score")


@dataclass(frozen=True)
class Traits:
    """Properties of a domain."""

    trainer: str
    """`module:Class` of its `rl_core.trainers.base.Trainer`."""
    rows: SchemaName
    """Contract of its rows, by which they are also read and prepared."""
    model: ModelKind
    samples_tokens: bool
    """True if the recipe's algorithm trains tokens that the policy sampled."""
    curve: Curve
    """The learning curve of a run."""
    source: str = "prompts"
    """Data source of a recipe that names none."""
    block: str | None = None
    """Block of the recipe that it needs, and no other domain has."""
    with_vllm: bool = False
    """True if vLLM can sample its policy."""
    with_servers: bool = False
    """True if a vLLM server of somebody else can, which takes prompts of text alone."""
    has_scores: bool = True
    """True if evaluations give scores besides `accuracy` and `mean_reward`."""
    page: Page | None = None
    """Its demo page, if there is one."""
    deals_rows: bool = False
    """True if several ranks train rows that are dealt to them by tokens."""
    gives_scores: bool = False
    """True if the trained model gives a score in place of a text, and learns by an algorithm of
    scores."""

    @property
    def plays(self) -> bool:
        """True if held-out rows may name an environment that replies are played with."""
        return self.rows in (SchemaName.PROMPT, SchemaName.CONVERSATION)


TRAITS: Mapping[Domain, Traits] = MappingProxyType(
    {
        Domain.TEXT: Traits(
            trainer="rl_core.trainers.domains.text:TextTrainer",
            rows=SchemaName.PROMPT,
            model=ModelKind.TEXT,
            samples_tokens=True,
            curve=REWARD,
            with_vllm=True,
            with_servers=True,
            deals_rows=True,
            has_scores=False,
            page=Page.CHAT,
        ),
        Domain.VISION: Traits(
            trainer="rl_core.trainers.domains.vision:VisionTrainer",
            rows=SchemaName.PROMPT,
            model=ModelKind.SEEING,
            samples_tokens=True,
            curve=REWARD,
            with_vllm=True,
            has_scores=False,
        ),
        Domain.PREFERENCE: Traits(
            trainer="rl_core.trainers.domains.preference:PreferenceTrainer",
            rows=SchemaName.PREFERENCE,
            model=ModelKind.SEEING,
            samples_tokens=False,
            curve=PAIRS,
            page=Page.CHAT,
        ),
        Domain.REWARD_MODEL: Traits(
            trainer="rl_core.trainers.domains.reward_model:RewardModelTrainer",
            rows=SchemaName.PREFERENCE,
            model=ModelKind.TEXT,
            samples_tokens=False,
            curve=PAIRS,
            gives_scores=True,
        ),
        Domain.SFT: Traits(
            trainer="rl_core.trainers.domains.sft:SftTrainer",
            rows=SchemaName.CONVERSATION,
            model=ModelKind.SEEING,
            samples_tokens=False,
            curve=GIVEN,
            page=Page.CHAT,
        ),
        Domain.DIFFUSION: Traits(
            trainer="rl_core.trainers.domains.diffusion:DiffusionTrainer",
            rows=SchemaName.MEDIA,
            source="multimodal",
            model=ModelKind.PIPELINE,
            samples_tokens=False,
            curve=SCORED,
            page=Page.DRAW,
        ),
        Domain.PE: Traits(
            trainer="rl_core.trainers.domains.prompt_enhancer:PromptEnhancerTrainer",
            rows=SchemaName.MEDIA,
            source="multimodal",
            model=ModelKind.TEXT,
            samples_tokens=True,
            curve=ENHANCED,
            block="tracks",
            page=Page.CHAT,
        ),
        Domain.UNIFIED: Traits(
            trainer="rl_core.trainers.domains.unified:UnifiedTrainer",
            rows=SchemaName.MEDIA,
            source="multimodal",
            model=ModelKind.UNIFIED,
            samples_tokens=True,
            curve=PLANNED,
            block="unified",
        ),
    }
)
