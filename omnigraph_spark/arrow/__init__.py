"""Arrow arrays and batches: exact casts, the ways in and out."""
