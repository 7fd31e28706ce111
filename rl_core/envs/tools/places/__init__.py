"""Places where programs run, besides bubblewrap: containers, servers."""
