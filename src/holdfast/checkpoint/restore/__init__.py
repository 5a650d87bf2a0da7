"""Recovery: chooses a checkpoint, checks that it fits the program, and builds the stores."""
