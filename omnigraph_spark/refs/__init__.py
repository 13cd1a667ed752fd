"""Branches, tags and versions: what a ref is and how it is made; below the write path."""
