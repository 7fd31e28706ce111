"""Servers of somebody else that sample for a run."""
