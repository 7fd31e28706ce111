"""The registry of one part: the plug-in registry, with a contract that each class is held to.

A block is resolved like that of any plug-in. Parts are not discovered in a folder: the project's
own class follows from the domain, and a recipe names another by `target`. A class that has a nested
`Config` is built with the block's other keys as the keyword argument `settings`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_core.errors import RecipeError
from rl_core.parts.conformance import shortcomings
from rl_core.runtime.registry import Registry, import_target
from schemas.sections.parts import PartBlock


class PartRegistry(Registry[Any]):
    """The classes that a recipe may name for one part.

    Args: part: key of its block in a recipe. contract: protocol with the members of each class.
    own: `module:Class` of the project's classes that a block may name. usual: name that a block
    without name and target stands for.
    """

    def __init__(
        self,
        part: str,
        contract: type,
        own: Mapping[str, str] | None = None,
        usual: str | None = None,
    ) -> None:
        super().__init__(part, "rl_core.parts")
        self.contract, self.own, self.usual = contract, dict(own or {}), usual

    def resolve(self, block: Mapping[str, object], where: str) -> tuple[type[Any], Any]:
        """Return the class that a block names, and the block's other keys as its `Config`.

        Raises: RecipeError when the class cannot be imported or lacks a member of the contract, or
        a key is unknown.
        """
        if self.usual and block.get("name") is None and block.get("target") is None:
            block = {**block, "name": self.usual}
        return super().resolve(block, where)

    def chosen(self, block: PartBlock | None, usual: type[Any]) -> tuple[type[Any], dict[str, Any]]:
        """Return the class that a recipe's block names, and the keyword arguments that it is built
        with besides those of the contract.

        Args: usual: class of a recipe without the block.
        """
        if block is None:
            return usual, {}
        cls, settings = self.resolve(block, self.kind)
        return cls, {"settings": settings} if hasattr(cls, "Config") else {}

    def check(self, cls: type, where: str) -> None:
        """Hold a class to the contract. Raises: RecipeError naming each member that it lacks."""
        hold_to(self.contract, cls, where)

    def _discover(self) -> None:
        self._classes = {name: import_target(target) for name, target in self.own.items()}


def hold_to(contract: type, cls: type, where: str) -> None:
    """Hold a class to a contract. Raises: RecipeError naming each member that it lacks."""
    if lacking := shortcomings(cls, contract):
        raise RecipeError(
            f"{where}.target: {cls.__module__}:{cls.__qualname__} is no {contract.__name__}: "
            f"{'; '.join(lacking)}; docs/extending.md has the contract"
        )
