"""`petastorm.tools`: commands."""
