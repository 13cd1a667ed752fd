"""Reading: planning on the driver, scanning on executors."""
