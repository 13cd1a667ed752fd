"""Single properties change in `_schema.pg`; everything that people wrote around them stays."""

from __future__ import annotations

import pytest

from omnigraph_spark.errors import UnsupportedError
from omnigraph_spark.schema import edits
from omnigraph_spark.schema.model import Constraint, Property
from omnigraph_spark.schema.pg import parse_pg
from omnigraph_spark.schema.property_types import parse

TEXT = """// people
interface Named {
    name: String
}
node Person @doc("a } brace") implements Named {
    slug: String @key   // the key
    age: I32? // years
    // what follows is about email
    email: String? @unique
    @unique(age, email)
    @check(email, "age.*@")
    @range(age, 0..150)
}
node Tag { name: String @key }
edge Knows: Person -> Person
edge Likes: Person -> Tag { since: Date? }
"""
NICK = Property("nick", parse("String?"))


def names(text: str, key: str) -> list[str]:
    found = parse_pg(text).of_table(key)
    assert found is not None
    return [one.name for one in found.properties]


@pytest.mark.parametrize("key", ["node:Person", "node:Tag", "edge:Knows", "edge:Likes"])
def test_an_added_property_comes_last_and_nothing_else_changes(key: str) -> None:
    found = edits.add_properties(TEXT, key, (NICK,))
    before = names(TEXT, key)
    inherited = ["name"] if key == "node:Person" else []
    own = [name for name in before if name not in inherited]
    assert names(found, key) == [*own, "nick", *inherited]
    assert (
        edits.drop_properties(found, key, frozenset({"nick"})).split()
        == (
            TEXT.replace("-> Person\n", "-> Person {\n}\n") if key == "edge:Knows" else TEXT
        ).split()
    )
    assert edits.add_properties(found, key, (NICK,)) == found


def test_in_a_body_of_lines_an_added_property_is_one_line_more() -> None:
    found = edits.add_properties(TEXT, "node:Person", (NICK,))
    assert found == TEXT.replace("0..150)\n}", "0..150)\n    nick: String?\n}")


def test_a_dropped_property_takes_its_line_and_its_rules_along() -> None:
    found = edits.drop_properties(TEXT, "node:Person", frozenset({"age"}))
    assert found == TEXT.replace("    age: I32? // years\n", "").replace(
        "    @unique(age, email)\n", ""
    ).replace("    @range(age, 0..150)\n", "")
    assert edits.drop_properties(found, "node:Person", frozenset({"age"})) == found


def test_a_property_of_an_interface_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="OMNIGRAPH_UNSUPPORTED"):
        edits.drop_properties(TEXT, "node:Person", frozenset({"name"}))


def test_rules_come_with_the_property_that_they_name_and_only_once() -> None:
    rule = Constraint("Unique", ("age", "nick"))
    other = Constraint("Unique", ("age", "ghost"))
    found = edits.add_properties(TEXT, "node:Person", (NICK,), (rule, other))
    assert found == TEXT.replace(
        "0..150)\n}", "0..150)\n    nick: String?\n    @unique(age, nick)\n}"
    )
    assert edits.add_properties(found, "node:Person", (NICK,), (rule, other)) == found


def test_a_type_that_the_text_lacks_is_left_out() -> None:
    assert edits.add_properties(TEXT, "node:Ghost", (NICK,)) == TEXT
    assert edits.drop_properties(TEXT, "node:Ghost", frozenset({"age"})) == TEXT


def test_a_property_that_comes_back_under_another_name_stands_where_it_stood() -> None:
    order = ("slug", "years", "email", "name")
    years = Property("years", parse("I32?"))
    gone = edits.drop_properties(TEXT, "node:Person", frozenset({"age"}))
    found = edits.add_properties(gone, "node:Person", (years, NICK), (), order)
    assert names(found, "node:Person") == ["slug", "years", "email", "nick", "name"]
    assert "    years: I32?\n    email: String? @unique\n" in found
    assert edits.add_properties(found, "node:Person", (years, NICK), (), order) == found
    two = (Property("a", parse("I32?")), Property("b", parse("I32?")))
    found = edits.add_properties(TEXT, "node:Tag", two, (), ("a", "b", "name"))
    assert names(found, "node:Tag") == ["a", "b", "name"]
    found = edits.add_properties(TEXT, "node:Tag", two, (), ("name", "a", "b"))
    assert names(found, "node:Tag") == ["name", "a", "b"]
