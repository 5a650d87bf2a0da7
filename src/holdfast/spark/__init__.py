"""The Spark side: environment, compiler, epochs, pinning, sources, sinks."""
