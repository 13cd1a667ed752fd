"""The rules of a graph: what they are, which rows break them, and where such rows go."""
