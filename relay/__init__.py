"""From the outbox to Redis Streams; knows no stage code."""
