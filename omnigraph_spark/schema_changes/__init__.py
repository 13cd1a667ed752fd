"""Change a graph's tables and their properties: each change is one publish."""
