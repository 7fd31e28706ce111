"""Prompts of a judge: a template of the recipe's with the row's fields in it.

Fields stand in braces: `{prompt}`, `{reply}`, `{reference}` (the ground truth), `{row.name}` for
any other column of the row (`{row.extra_info.topic}` for one inside), and `{first}`, `{second}`
where two replies are compared. `{question}` and `{form}` are the recipe's question and how to
answer it. A brace is written twice, `{{`.
"""

from __future__ import annotations

import json
import string
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from rl_core.errors import RecipeError
from rl_core.rewards.base import Sample
from rl_core.rewards.judging.fences import fenced
from rl_core.rewards.judging.settings import Example
from rl_core.runtime.registry import nearest

ROW = "row."
OWN = ("question", "form")
"""Fields that the recipe's settings fill, and that need no quotation."""


@dataclass(frozen=True)
class Template:
    """A template that was taken apart."""

    parts: tuple[tuple[str, str | None], ...]
    """Text, and the field behind it."""

    @classmethod
    def read(cls, text: str, known: Collection[str], needed: Collection[str] = ()) -> Template:
        """Take a template apart.

        Args: known: fields besides those of the row. needed: fields that it must have. Raises:
        ValueError naming the field.
        """
        try:
            found = list(string.Formatter().parse(text))
        except ValueError as error:
            raise ValueError(f"{error}; write a brace that is none of a field twice") from error
        parts: list[tuple[str, str | None]] = []
        for before, name, form, conversion in found:
            if name is not None and (form or conversion):
                raise ValueError(f"the field {name!r} has a format; write {{{name}}} alone")
            if name is not None and not _is_known(name, known):
                raise ValueError(
                    f"unknown field {name!r}{nearest(name, [*known])}; a column of the row is "
                    f"{{{ROW}{name or 'name'}}}"
                )
            parts.append((before, name))
        fields = {name for _, name in parts if name is not None}
        if missing := [name for name in needed if name not in fields]:
            raise ValueError(f"the field {{{missing[0]}}} is missing")
        return cls(tuple(parts))

    @property
    def fields(self) -> list[str]:
        """Names of the fields, each once."""
        return list(dict.fromkeys(name for _, name in self.parts if name is not None))

    def filled(self, sample: Sample, own: Mapping[str, str], texts: Mapping[str, str]) -> str:
        """Return the prompt for a sample, with every text of the row quoted.

        Args: own: values of the fields in `OWN`. texts: further texts by field, such as two
        replies. Raises: RecipeError when the row has no such field.
        """
        names = [name for name in self.fields if name not in own]
        values = {name: texts[name] if name in texts else value_of(sample, name) for name in names}
        marks = {name: name.rpartition(".")[2] for name in names}
        # Two columns may end in the same word.
        if len(set(marks.values())) < len(names):
            marks = {name: name.replace(".", "-") for name in names}
        quoted = fenced({marks[name]: value for name, value in values.items()})
        whole = ""
        for before, name in self.parts:
            whole += before
            if name is not None:
                whole += own[name] if name in own else quoted[marks[name]]
        return whole


def shown(examples: Sequence[Example], template: Template, own: Mapping[str, str]) -> list[str]:
    """Return the examples' prompts and verdicts in turn. Raises: RecipeError when the template has
    a field of the row, which an example has not."""
    turns = []
    for one in examples:
        sample = Sample(one.prompt, (one.reply,), ground_truth=one.reference)
        turns += [template.filled(sample, own, {}), one.verdict]
    return turns


def value_of(sample: Sample, name: str) -> str:
    """Return the text of a field of a row. Raises: RecipeError when it has none."""
    if name == "prompt":
        return sample.prompt
    if name == "reply":
        return sample.text
    found: object = sample.metadata
    if name == "reference":
        found = sample.ground_truth
    else:
        for part in name.removeprefix(ROW).split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
    if found is None:
        has = ", ".join(map(str, sample.metadata)) or "none"
        raise RecipeError(
            f"the template's field {{{name}}}: the row with the prompt {sample.prompt[:60]!r} has "
            f"no such value; its columns are: {has}"
        )
    if isinstance(found, str):
        return found
    return _written(found)


def _is_known(name: str, known: Collection[str]) -> bool:
    return name in known or (name.startswith(ROW) and all(name.split(".")))


def _written(value: object) -> str:
    if isinstance(value, Sequence) and all(isinstance(one, str | int | float) for one in value):
        return "\n".join(map(str, value))
    return json.dumps(value, ensure_ascii=False, default=str)
