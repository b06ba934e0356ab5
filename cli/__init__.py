"""The postroad command: may import everything, nothing imports it."""

from .main import main

__all__ = ["main"]
