"""Everything worth doing on a GPU that is at hand for a quarter of an hour: `make gpu-suite`."""
