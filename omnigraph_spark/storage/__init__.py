"""What lies on a disk or an object store: the only place that opens datasets and objects."""
