"""Whatever a family of models is like, a path of computing gives what plain transformers gives, or says why not."""

from collections.abc import Iterator

import pytest

from benchmarks import check_models
from benchmarks.check_models import COLUMNS, FAULTS, Family
from benchmarks.model_families import model_types

FAMILIES = {
    "llama": "a plain decoder",
    "granite": "logits are divided after the head",
    "gemma2": "logits and scores are capped, layers have windows",
    "stablelm": "attention takes no keyword arguments",
    "gpt2": "the backbone is not called model, and drops out",
    "qwen3_next": "layers of convolutions and recurrences between those of attention, and experts",
}


@pytest.fixture(scope="module")
def found() -> Iterator[dict[str, Family]]:
    yield {family.model_type: family for family in check_models.run(list(FAMILIES), jobs=2)}


@pytest.mark.parametrize("model_type", FAMILIES)
def test_no_path_gives_something_else_in_silence(found: dict[str, Family], model_type: str) -> None:
    family = found[model_type]
    assert not family.not_built
    assert tuple(family.cells) == COLUMNS
    assert [f"{path}: {cell}" for path, cell in family.cells.items() if cell.verdict in FAULTS] == []


def test_a_plain_decoder_is_right_on_every_path(found: dict[str, Family]) -> None:
    assert {str(cell.verdict) for cell in found["llama"].cells.values()} == {"equal"}


def test_all_families_are_asked_for() -> None:
    assert set(FAMILIES) <= set(model_types())
    assert len(model_types()) > 200
