"""Commands that list what there is, and the way in which every command prints a list."""
