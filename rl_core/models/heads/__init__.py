"""Heads of language models: logits, a value per token, a score per conversation."""
