"""Data work on the nodes of a cluster, by Ray Data. See README.md in this folder."""
