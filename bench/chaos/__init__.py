"""A deployment under load, struck by one fault after the other, and asked how long it takes to heal.

Real processes on durable servers: an intake, two relays, five workers. Clients submit tasks at a steady rate over HTTP,
and repeat each request under its idempotency key until it is answered. Meanwhile the faults of ``faults`` strike at
random, mostly alone, sometimes two at once; which ones and in which order depends on the seed alone. After each the
harness waits until all is well again, and notes how long that took. At the end it asks Postgres what became of every
task that was answered with 202.
"""
