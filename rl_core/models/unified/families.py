"""The families of unified models, and which one a folder belongs to."""

from rl_core.models.diffusion.base import family_of
from rl_core.models.unified.base import UnifiedFamily
from rl_core.models.unified.compact import CompactUnified
from rl_core.models.unified.glm_image import GlmImage
from rl_core.models.unified.hunyuan_image3 import HunyuanImage3


def unified_classes() -> list[type[UnifiedFamily]]:
    """Return all families, in order of name."""
    return sorted([CompactUnified, GlmImage, HunyuanImage3], key=lambda cls: cls.name)


def unified_class(model_class: str) -> type[UnifiedFamily]:
    """Return the family of a class of models, as named by their folder. Raises: ModelError naming
    the nearest known one."""
    return family_of(model_class, unified_classes(), "unified")
