"""What people see of a graph and of what its calls give: text, HTML, and the version of the package."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import omnigraph_spark
from omnigraph_spark.graph import OmniGraph
from omnigraph_spark.maintenance.check import Finding, Findings
from omnigraph_spark.maintenance.cleanup import Cleaned, CleanedDataset
from omnigraph_spark.storage.progress import as_html, as_text, described
from omnigraph_spark.storage.store import Storage
from tests.support import writes

PROJECT = Path(__file__).resolve().parents[2]


def test_a_graph_shows_its_tables_and_one_that_is_not_there_shows_why(tmp_path: Path) -> None:
    storage = writes.new_graph(Storage.at(str(tmp_path / "g")))
    graph = OmniGraph(None, storage.root)  # type: ignore[arg-type]
    assert repr(graph) == f"OmniGraph(uri={storage.root!r})"
    for text in (str(graph), graph._repr_html_()):
        assert storage.root in text
        assert "node:Person" in text
        assert "name: String" in text
    missing = OmniGraph(None, f"{tmp_path}/none", {"aws_secret_access_key": "canary"})  # type: ignore[arg-type]
    for text in (str(missing), missing._repr_html_()):
        assert "OMNIGRAPH_GRAPH_NOT_FOUND" in text
        assert "canary" not in text
    assert list(tmp_path.iterdir()) == [tmp_path / "g"]


def test_findings_and_cleanups_show_a_line_for_each_thing() -> None:
    assert repr(Findings()) == "Nothing is wrong with the graph"
    assert Findings() == []
    found = Findings([Finding("left", "node:A", "a <b> of a writer", True)])
    assert repr(found).splitlines()[0] == "1 finding"
    assert "a <b> of a writer" in repr(found)
    assert "a &lt;b&gt; of a writer" in found._repr_html_()
    datasets = (CleanedDataset("node:A", 3, 1_200, 5_000_000), CleanedDataset("edge:E"))
    cleaned = Cleaned(True, datetime(2026, 1, 2, tzinfo=timezone.utc), datasets)
    assert "3 versions and 1,200 files of 5,000,000 bytes would go" in repr(cleaned)
    assert len(repr(cleaned).splitlines()) == 4
    assert "<td>1,200</td>" in cleaned._repr_html_()


def test_a_long_table_is_cut_off_and_says_so() -> None:
    rows = [(f"r{at}", at) for at in range(60)]
    assert as_text("t", ("a", "b"), rows).endswith("… and 10 more")
    assert "… and 10 more" in as_html("t", ("a", "b"), rows)
    assert as_text("nothing", ("a",), []) == "nothing"


def test_a_session_without_jobs_is_left_alone() -> None:
    with described(object(), "a step"):
        pass


def test_the_version_of_the_package_is_that_of_the_project() -> None:
    text = (PROJECT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{omnigraph_spark.__version__}"' in text
