"""Tools of the recipes: typed functions that a model may call."""
