-- Say that a process lives, and what it does. Parameters: process text, role text, host text, pid int, version text,
-- stages text[], is_leading boolean, running jsonb as text, uptime interval, is_stopped boolean (true: it ends now).
-- Writes its one row, in place (HOT): what changes is in no index.
insert into postroad.process as known
       (process, role, host, pid, version, stages, is_leading, running, started_at, seen_at, stopped_at)
values (%(process)s, %(role)s, %(host)s, %(pid)s, %(version)s, %(stages)s::text[], %(is_leading)s,
        %(running)s::jsonb, now() - %(uptime)s::interval, now(), case when %(is_stopped)s then now() end)
    on conflict (process) do update
   set is_leading = excluded.is_leading, running = excluded.running, seen_at = excluded.seen_at,
       stopped_at = excluded.stopped_at
