"""Measurements: `python -m bench`, see README.md."""
