"""How state survives: when checkpoints are taken, kept and gone back to."""
