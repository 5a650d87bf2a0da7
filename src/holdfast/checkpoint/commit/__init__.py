"""Output, exactly once: committables wait for their checkpoint, then they are published."""
