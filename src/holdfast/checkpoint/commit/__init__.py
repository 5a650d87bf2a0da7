"""Output, exactly once: committables wait for their checkpoint, then they are published.

`committables` collects them, `service` decides when to publish, `publisher` calls the sinks, and
`opened_notes` remembers what writers have opened, so that it can be aborted.

Not here: staging output, which writers do (`runtime.operators`, `connectors`).
Imports: `job`, `runtime`, `state`, `api`, `storage`, `config`.
"""
