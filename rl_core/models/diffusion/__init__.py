"""Diffusion models that flow from noise to images and videos: the policy, and one small file per
family."""
