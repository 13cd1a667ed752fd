"""Writing: plan on the driver, stage in tasks, commit on the driver."""
