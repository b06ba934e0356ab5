-- Remove the processes that were not seen for a day. Reads the table, which is small.
delete from postroad.process where seen_at < now() - interval '1 day'
