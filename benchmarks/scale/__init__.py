"""How the product behaves at sizes that do not fit into this machine, from its own code."""
