"""Going back: choosing a checkpoint, checking it against the program, building the stores."""
