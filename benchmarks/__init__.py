"""How fast Penstock reads, in numbers that can be measured again; run by hand, one script each."""
