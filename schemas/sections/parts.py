"""The blocks of a recipe that replace a part of the training by a class of the user's."""

from collections.abc import Mapping
from typing import Any, TypeAlias

Block: TypeAlias = dict[str, Any]
"""A plug-in and its options, `{name: grpo, ...}`; the `Config` of the class it names checks the
values, so nothing is known about them before."""

PartBlock: TypeAlias = Block
"""A block `{target: my_pkg.my_module:MyClass, ...}`; its other keys are those of the class's
`Config`."""

PARTS = ("bundle", "backend", "stack", "engine", "sync", "trainer")
"""Keys of these blocks in a recipe."""

USUAL_OPTIONS = frozenset({"name", "block_class_names", "trainable_attr"})
"""Keys of a block that names no class of the user's."""


def without_unset_parts(values: Mapping[str, object]) -> dict[str, Any]:
    """Return a recipe's values without the blocks of parts that it leaves to the project.

    A recipe that replaces no part thereby has the identity that it had before parts could be
    replaced.
    """
    return {key: value for key, value in values.items() if key not in PARTS or value is not None}
