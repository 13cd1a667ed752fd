"""What makes Spark find `format("omnigraph")` without a call.

Spark imports top-level modules named `pyspark_*` and registers their `DefaultSource` (fact 9).
"""

from omnigraph_spark.spark.datasource import OmnigraphDataSource as DefaultSource

__all__ = ["DefaultSource"]
