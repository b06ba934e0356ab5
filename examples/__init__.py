"""Pipelines to read, run and take apart."""
