"""Commands of Petastorm: `petastorm.tools`."""
