"""Read the column list of the option `schema` (`id STRING NOT NULL, tags ARRAY<STRING>`).

Spark's own parser lives in the JVM and needs a session; a data source's `schema()` runs in a worker
process that has none. So this is a small parser of the same spelling; it runs on the driver.
"""

from __future__ import annotations

import re

from pyspark.sql import types as T
from pyspark.sql.types import DataType, StructField, StructType

from omnigraph_spark.errors import OptionError
from omnigraph_spark.spark import field_metadata

_SIMPLE: dict[str, DataType] = {
    "string": T.StringType(),
    "boolean": T.BooleanType(),
    "tinyint": T.ByteType(),
    "byte": T.ByteType(),
    "smallint": T.ShortType(),
    "short": T.ShortType(),
    "int": T.IntegerType(),
    "integer": T.IntegerType(),
    "bigint": T.LongType(),
    "long": T.LongType(),
    "float": T.FloatType(),
    "real": T.FloatType(),
    "double": T.DoubleType(),
    "date": T.DateType(),
    "timestamp": T.TimestampType(),
    "timestamp_ltz": T.TimestampType(),
    "timestamp_ntz": T.TimestampNTZType(),
    "binary": T.BinaryType(),
}
_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|([A-Za-z_]\w*|\d+)|([<>(),:])|('(?:[^']|'')*'))")
_EXAMPLE = "'id STRING, name STRING, since DATE NOT NULL'"


def parse_columns(text: str) -> StructType:
    """Return the columns that a DDL text names, nullable unless it says `NOT NULL`.

    Raises:
        OptionError: the text is not a column list, or has a type that a table can't have.
    """
    parser = _Parser(text)
    fields = parser.fields(end=None)
    names = [field.name for field in fields]
    if len({name.lower() for name in names}) != len(names):
        raise OptionError("Option schema names a column twice", found=", ".join(names)[:200])
    return field_metadata.required(StructType(fields))


def parse_type(text: str) -> DataType:
    """Return the type that a text names as Spark's DDL does, such as `decimal(10, 2)`.

    Raises:
        OptionError: it names none that a table can have.
    """
    return _Parser(text, "type", "'bigint', 'decimal(10, 2)', 'array<double>'").alone()


class _Parser:
    def __init__(
        self,
        text: str,
        what: str = "Option schema",
        example: str = f"a column list such as {_EXAMPLE}",
    ) -> None:
        self._text = text
        self._what = what
        self._example = example
        self._tokens: list[str] = []
        at = 0
        while text[at:].strip():
            match = _TOKEN.match(text, at)
            if match is None:
                raise self._malformed(text[at : at + 20])
            self._tokens.append(match.group().strip())
            at = match.end()
        self._next = 0

    def fields(self, end: str | None) -> list[StructField]:
        """Read `name [:] type [NOT NULL] [COMMENT '…']`, separated by commas, up to `end`."""
        fields = [self._field()]
        while self._peek() == ",":
            self._take()
            fields.append(self._field())
        if self._peek() != end:
            raise self._malformed(self._peek())
        return fields

    def alone(self) -> DataType:
        """Read one type, and nothing behind it."""
        data_type = self._type()
        if self._peek() is not None:
            raise self._malformed(self._peek())
        return data_type

    def _field(self) -> StructField:
        name = self._take()
        if name.startswith("`"):
            name = name[1:-1].replace("``", "`")
        elif not re.match(r"\w", name):
            raise self._malformed(name)
        if self._peek() == ":":
            self._take()
        kind, nullable = self._type(), True
        if self._peek_word() == "not":
            self._take()
            self._expect("null")
            nullable = False
        if self._peek_word() == "comment":
            self._take()
            self._take()
        return StructField(name, kind, nullable)

    def _type(self) -> DataType:
        word = self._take().lower()
        if word in _SIMPLE:
            return _SIMPLE[word]
        if word in ("char", "varchar"):
            self._numbers()
            return T.StringType()
        if word in ("decimal", "dec", "numeric"):
            return self._decimal()
        if word == "array":
            self._expect("<")
            element = self._type()
            self._expect(">")
            return T.ArrayType(element, True)
        if word == "map":
            self._expect("<")
            key = self._type()
            self._expect(",")
            value = self._type()
            self._expect(">")
            return T.MapType(key, value, True)
        if word == "struct":
            self._expect("<")
            inner = StructType(self.fields(end=">"))
            self._take()
            return inner
        raise self._malformed(word)

    def _decimal(self) -> T.DecimalType:
        numbers = self._numbers() if self._peek() == "(" else [10]
        precision, scale = (*numbers, 0)[:2]
        if not (1 <= precision <= 38 and 0 <= scale <= precision):
            raise self._malformed(f"DECIMAL({precision},{scale})")
        return T.DecimalType(precision, scale)

    def _numbers(self) -> list[int]:
        self._expect("(")
        numbers = [self._number()]
        while self._peek() == ",":
            self._take()
            numbers.append(self._number())
        self._expect(")")
        return numbers

    def _number(self) -> int:
        token = self._take()
        if not token.isdigit():
            raise self._malformed(token)
        return int(token)

    def _peek(self) -> str | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _peek_word(self) -> str:
        return (self._peek() or "").lower()

    def _take(self) -> str:
        token = self._peek()
        if token is None:
            raise self._malformed(None)
        self._next += 1
        return token

    def _expect(self, token: str) -> None:
        actual = self._take()
        if actual.lower() != token:
            raise self._malformed(actual)

    def _malformed(self, actual: str | None) -> OptionError:
        return OptionError(
            f"{self._what} is malformed",
            expected=self._example,
            found=repr(actual) if actual else "the end of the text",
        )
