"""What Spark calls, and what this package knows of Spark's types."""
