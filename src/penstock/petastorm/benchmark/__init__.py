"""How fast readers and loaders are: `petastorm.benchmark`."""
