-- Empty a leaf that is locked, old and published. The leaf's number replaces {leaf}.
truncate postroad.outbox_{leaf}
