"""SkyRL's import path of its prompt dataset, so that scripts written for SkyRL import unchanged."""
