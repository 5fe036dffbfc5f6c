"""The corridor: the rooms data walks through, private, in the order it walks."""
