"""Merges of branches, diffs and restores."""
