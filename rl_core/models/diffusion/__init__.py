"""Diffusion models that flow from noise to pictures and videos: the policy, and one small file per family."""
