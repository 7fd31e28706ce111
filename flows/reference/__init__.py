"""Reference pages made from the code: every recipe key, plug-in, command and metric; `make reference` writes them."""
