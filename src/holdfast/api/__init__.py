"""What users write: functions, state, descriptors, sources and sinks.

Declarations only.

Not here: anything that runs a job, which is the work of `runtime` and `spark`.
Imports: `types`, `config`.
"""
