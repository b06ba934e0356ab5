-- The definition of a pipeline that is in force. Parameter: pipeline text. Returns definition jsonb, version int.
select definition, version from postroad.pipeline where pipeline = %(pipeline)s
