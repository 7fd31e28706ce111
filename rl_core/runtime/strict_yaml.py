"""YAML in which every key of a mapping stands once.

PyYAML takes the last of two equal keys, so that half of a recipe may not count without a word.
"""

from pathlib import Path
from typing import Any

import yaml

from rl_core.errors import RecipeError


class _Loader(yaml.SafeLoader):
    """The safe loader, which refuses a repeated key."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Compose a mapping and look at its keys, before another one is merged into it."""
        # An anchor is a text or None, which PyYAML's stubs do not say.
        node = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                line = key.start_mark.line + 1
                if (key.tag, key.value) in lines:
                    raise RepeatedKey(key.value, line, lines[key.tag, key.value])
                lines[key.tag, key.value] = line
        return node


class RepeatedKey(yaml.YAMLError):
    """A key that a mapping has twice, with both lines."""

    def __init__(self, key: str, line: int, first: int) -> None:
        super().__init__(f"the key {key!r} is there twice, in lines {first} and {line}; keep one")
        self.line = line


def read_strict_yaml(path: Path) -> object:
    """Return the value in a YAML file. Raises: RecipeError naming file, line and problem."""
    try:
        return yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except RepeatedKey as error:
        raise RecipeError(f"{path}: line {error.line}: {error}") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{path}: line {mark.line + 1}" if mark is not None else str(path)
        raise RecipeError(f"{place}: not valid YAML: {yaml_problem(error)}") from error
    except (yaml.YAMLError, ValueError) as error:
        # A ValueError is of bytes that are no UTF-8, or of a date that no calendar has.
        raise RecipeError(f"{path}: not valid YAML: {error}") from error
    except RecursionError as error:
        raise RecipeError(f"{path}: nested too deeply") from error
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read: {error.strerror}") from error


def yaml_problem(error: yaml.MarkedYAMLError) -> str:
    """Return what a YAML parser complains of, in one line."""
    return ", ".join(text for text in (error.context, error.problem) if text)
