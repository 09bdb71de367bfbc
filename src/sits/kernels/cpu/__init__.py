"""CPU implementations of the operators; importing the package registers them."""
