"""Branches and other refs of a graph."""
