"""Judges: language models that are asked how good a reply is, or which of two is better."""
