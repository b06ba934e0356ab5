-- Let deployments, and workers that record a new pipeline, follow each other. Until the end of the transaction.
select pg_advisory_xact_lock(hashtextextended('postroad.deploy', 0))
