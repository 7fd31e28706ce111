"""Reference pages generated from the code: every recipe key, plug-in, command and metric; `make
reference` writes them."""
