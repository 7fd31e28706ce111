"""SkyRL's import path: `from skyrl_train.dataset.dataset import PromptDataset`."""

from rl_core.data.order.prompt_dataset import PromptDataset

__all__ = ["PromptDataset"]
