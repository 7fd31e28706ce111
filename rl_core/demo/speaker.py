"""A language model that answers in a conversation, decoded as in a rollout."""

from __future__ import annotations

import torch

from rl_core.demo.questions import Answer, Question
from rl_core.errors import DataError
from rl_core.models.decoding.decode import decode
from rl_core.models.decoding.request import Request, Sampling
from rl_core.models.decoding.stop_strings import StopStrings
from rl_core.serving.served_model import ServedModel
from schemas.recipe import Recipe
from schemas.sections.checks.quantization import in_full_precision
from schemas.sections.sampling import CUTS, SamplingConfig


class Speaker(ServedModel):
    """A loaded language model that answers one question at a time, with the recipe's settings of
    sampling.

    Args: source: result of `locate`. recipe: chat template, attention and sampling.
    """

    def __init__(self, source: str, recipe: Recipe, device: str) -> None:
        settings = in_full_precision(recipe.model).model_copy(update={"exact": False})
        super().__init__(source, settings, device)
        self.recipe = recipe

    def answer(self, question: Question) -> Answer:
        """Return the model's reply to the conversation."""
        prompt, longest = self.chat.encode(question.messages), self.longest
        room = question.max_new_tokens if longest is None else longest.num_tokens - len(prompt)
        if longest is not None and room < 1:
            raise DataError(
                f"the conversation has {len(prompt)} tokens; begin a new one, since the model "
                f"{longest.why}"
            )
        choice, stop = sampling_of(self.recipe, question)
        sampling = Sampling(
            question.max_new_tokens,
            question.temperature,
            self.eos_ids,
            self.pad_id,
            choice=choice,
        )
        generator = torch.Generator(self.device).manual_seed(question.seed)
        requests = [Request(prompt, 1, room, stop=StopStrings.of(stop))]
        with self.policy.ready_to_decode() as packed:
            given = self.policy, requests, sampling, generator, self.device, packed
            (reply,) = decode(*given, text_of=self.chat.decode)
        text = self.chat.decode(reply.token_ids)
        return Answer(text=text, is_cut=reply.stop_reason.is_truncated)


def sampling_of(recipe: Recipe, question: Question) -> tuple[SamplingConfig, list[str]]:
    """Return the choice of tokens and the stop strings for a question.

    A greedy reply is chosen as in the recipe's evaluations, whose cuts of improbable tokens would
    change nothing; a drawn one as in evaluations if these draw, too, else as in rollouts.
    """
    evaluation, rollout = recipe.evaluation, recipe.rollout
    drawn = question.temperature > 0
    source: SamplingConfig = rollout if drawn and not evaluation.temperature else evaluation
    names = set(SamplingConfig.model_fields) - {"stop"} - (set() if drawn else set(CUTS))
    values = {name: getattr(source, name) for name in names}
    # The page's limit may be lower than the recipe's.
    values["min_new_tokens"] = min(source.min_new_tokens, question.max_new_tokens)
    stop = rollout.stop if source.stop is None else source.stop
    return SamplingConfig.model_validate(values), stop or []
