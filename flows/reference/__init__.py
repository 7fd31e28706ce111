"""Reference pages made from the code: every recipe key, plug-in and command; `make reference` writes them."""
