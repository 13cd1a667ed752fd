"""Keeping a graph sound and small."""
