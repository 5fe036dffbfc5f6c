"""Other projects' loaders, each timed in an interpreter of its own; one file per project."""
