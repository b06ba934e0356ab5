"""The dashboard: pages over what Postgres knows, served by the intake under ``/ui``."""
