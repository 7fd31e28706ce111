"""SkyRL's import path of `PromptDataset`."""

from skyrl_train.dataset.dataset import PromptDataset

__all__ = ["PromptDataset"]
