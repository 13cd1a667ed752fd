"""Measurements beside the neighbours; nothing here asserts a time."""
