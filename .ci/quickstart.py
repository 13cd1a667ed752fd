"""Run the code of the quickstart page in the environment at hand, without the project's sources."""

import re
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

with tempfile.TemporaryDirectory() as folder:
    Path(folder, "people.csv").write_text("name,age\nAda,36\nGrace,45\n")
    Path(folder, "knows.csv").write_text("src,dst,since\nAda,Grace,1950\n")
    spark = (
        SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    )
    names = {"spark": spark, "folder": folder, "uri": f"{folder}/graph"}
    for block in re.findall(r"^```python\n(.*?)^```", Path(sys.argv[1]).read_text(), re.M | re.S):
        exec(block, names)
    rows = sorted((row.id, row.age) for row in names["graph"].table("Person").collect())
    assert rows == [("Ada", 37), ("Alan", 41), ("Edsger", 72), ("Grace", 45)], rows
    spark.stop()
