"""Random cases against slow truth, random damage, random requests: `make fuzz`."""
