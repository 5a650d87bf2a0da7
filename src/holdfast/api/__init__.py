"""What users write: functions, state, descriptors, sources and sinks.

Declarations only: nothing here runs a job. Imports `types` and `config`.
"""
