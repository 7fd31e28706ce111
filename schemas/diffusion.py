"""The recipe's `diffusion` block: what is made, in how many steps, and under which guidance."""

from pydantic import Field

from schemas.section import Section


class DiffusionConfig(Section):
    """How a diffusion model is sampled; the kernel and its noise are the algorithm's (`algorithm.sde`)."""

    height: int = Field(default=512, ge=1)
    """Pixels."""
    width: int = Field(default=512, ge=1)
    """Pixels."""
    num_frames: int = Field(default=1, ge=1)
    """Of a video; 1 makes pictures."""
    num_steps: int = Field(default=10, ge=2)
    """Denoising steps of a rollout."""
    eval_steps: int = Field(default=28, ge=1)
    """Denoising steps of an evaluation, which are deterministic."""
    guidance_scale: float = Field(default=1.0, ge=0)
    """Classifier-free guidance (arXiv 2207.12598), in rollout, training and evaluation alike; up to 1 there is none."""
    negative_prompt: str = ""
    """What guidance leads away from."""
    shift: float | None = Field(default=None, gt=0)
    """Of the noise schedule; unset means the model's own."""
    share_noise: bool = False
    """Whether the samples of a prompt start from the same noise (DanceGRPO)."""
    num_noised: int | None = Field(default=None, ge=1)
    """For DiffusionNFT: noised copies of a sample that are trained on; unset means `num_steps`."""
    steps_per_forward: int | None = Field(default=None, ge=1)
    """Steps of one sample that run forward together in training; unset means all. `placement.micro_batch_size` counts
    such portions."""
    decode_batch_size: int = Field(default=16, ge=1)
    """Samples that the VAE decodes at once."""
    video_fps: int = Field(default=8, ge=1)
    """Frames per second of the previews that are logged."""
