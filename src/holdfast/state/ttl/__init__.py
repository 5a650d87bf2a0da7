"""State that expires: its times, its bytes, and the sweep that removes it."""
