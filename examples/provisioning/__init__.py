"""Provisioning: users ask for processors, the pipeline finds them a machine and starts their job."""

from .pipeline import provisioning

__all__ = ["provisioning"]
