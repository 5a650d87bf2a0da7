"""The fluent API, and the job graph that it builds.

`data_stream` and `keyed_stream` are what users begin with; the other streams come from them and
lead back to them, so these modules know one another. `graph` knows none of them.

Not here: compiling the graph (`job.compiler`) and running it.
Imports: `types`, `config`.
"""
