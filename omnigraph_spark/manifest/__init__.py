"""`__manifest`: rows, snapshot, stamp, publish."""
