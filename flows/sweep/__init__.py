"""Sweeps: one recipe with several settings, a run each, and a page that compares them."""
