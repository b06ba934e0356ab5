"""Append events in the transaction that made them true; read them back in ticks; the audit trail."""
