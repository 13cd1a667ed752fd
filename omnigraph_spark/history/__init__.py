"""What happened to a graph: its commits, its runs, and the records of writes that run."""
