"""The families of diffusion models, and which one a pipeline belongs to."""

from rl_core.models.diffusion.base import DiffusionFamily, family_of
from rl_core.models.diffusion.flux2 import Flux2
from rl_core.models.diffusion.hunyuan_video import HunyuanVideo
from rl_core.models.diffusion.qwen_image import QwenImage
from rl_core.models.diffusion.sd3 import SD3
from rl_core.models.diffusion.wan import Wan
from rl_core.models.diffusion.z_image import ZImage


def family_classes() -> list[type[DiffusionFamily]]:
    """Return all families, in order of name."""
    return sorted([Flux2, HunyuanVideo, QwenImage, SD3, Wan, ZImage], key=lambda cls: cls.name)


def family_class(pipeline_class: str) -> type[DiffusionFamily]:
    """Return the family of a pipeline class. Raises: ModelError naming the nearest known one."""
    return family_of(pipeline_class, family_classes(), "diffusion")
