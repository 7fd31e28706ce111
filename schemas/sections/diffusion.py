"""The recipe's `diffusion` block: size of the samples, number of denoising steps, and guidance."""

from pydantic import Field

from schemas.sections.section import Section


class DiffusionConfig(Section):
    """Sampling of a diffusion model; the SDE kernel and its noise belong to the algorithm
    (`algorithm.sde`)."""

    height: int = Field(default=512, ge=1)
    """Height of a sample in pixels."""
    width: int = Field(default=512, ge=1)
    """Width of a sample in pixels."""
    num_frames: int = Field(default=1, ge=1)
    """Frames of a sample; 1 makes pictures, more make videos."""
    num_steps: int = Field(default=10, ge=2)
    """Denoising steps of a rollout."""
    eval_steps: int = Field(default=28, ge=1)
    """Denoising steps of an evaluation, which samples deterministically."""
    guidance_scale: float = Field(default=1.0, ge=0)
    """Classifier-free guidance (arXiv 2207.12598), in rollout, training and evaluation alike;
    values up to 1 turn it off."""
    negative_prompt: str = ""
    """Prompt that guidance leads away from."""
    shift: float | None = Field(default=None, gt=0)
    """Shift of the noise schedule; unset uses the model's own."""
    share_noise: bool = False
    """Start all samples of a prompt from the same noise (DanceGRPO)."""
    num_noised: int | None = Field(default=None, ge=1)
    """With DiffusionNFT: number of noised copies of a sample that are trained on; unset means
    `num_steps`."""
    steps_per_forward: int | None = Field(default=None, ge=1)
    """Denoising steps of one sample that share a forward pass in training; unset means all of them.
    `placement.micro_batch_size` counts such groups of steps."""
    decode_batch_size: int = Field(default=16, ge=1)
    """Samples that the VAE decodes in one batch."""
    video_fps: int = Field(default=8, ge=1)
    """Frames per second of the previews that are logged."""
