"""The postroad command: may import everything, nothing imports it."""
