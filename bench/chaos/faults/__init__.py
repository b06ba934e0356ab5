"""The faults, in one module for each place where they strike."""

from . import handlers, postgres, processes, redis

__all__ = ["handlers", "postgres", "processes", "redis"]
