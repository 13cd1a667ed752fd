"""Read and write OmniGraph property graphs with Apache Spark."""
