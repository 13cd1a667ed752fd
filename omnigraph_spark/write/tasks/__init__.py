"""The part of a write that runs on executors."""
