"""What the modules of `penstock.petastorm` share: their import paths are Petastorm's, and these are ours."""
