"""Checks of a recipe against its algorithms, before any start."""
