"""The part of a write that runs on the driver after its tasks."""
