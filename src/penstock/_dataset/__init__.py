"""What `Dataset` does besides holding a query: checks of arguments, explanations, collected results."""
