"""The original engine on graphs of this connector, and the other way round; on demand."""
