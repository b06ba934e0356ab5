create index task_pipeline on postroad.task (pipeline, created_at, task_id);

create index task_failed_or_cancelled on postroad.task (status, pipeline, created_at, task_id)
    where status in ('failed', 'cancelled');

create index task_labels on postroad.task using gin (labels jsonb_path_ops) where labels <> '{}';
