"""Take secrets out of any text before a person or a log sees it. Pure functions over strings."""

from __future__ import annotations

import re

_SECRET_NAME = (
    r"secret|password|passwd|token|credential|access_?key|account_?key|customer_?key|private_?key"
    r"|api_?key|signature|authorization"
)
_SECRET_KEY = re.compile(rf"{_SECRET_NAME}|(?:^|[^a-z])sas(?:$|[^a-z])|session|pem", re.IGNORECASE)
# What stands before the host: user and password (which may hold a slash), or a token.
# `container@account` of Azure is none.
_URI_USERINFO = re.compile(
    r"(?P<scheme>[a-zA-Z][a-zA-Z0-9+.\-]*)://(?P<info>[^/\s@:]*:[^\s@]+|[^/\s@]+)@"
)
_AZURE = frozenset({"abfs", "abfss", "wasb", "wasbs"})
# It starts where a word does: from every letter of a long word the search would be quadratic.
_KEY_VALUE = re.compile(
    rf"(?P<key>(?<![\w.\-])[\w.\-]*(?:{_SECRET_NAME})[\w.\-]*|\bsig)(?P<sep>[\"']?\s*[=:]\s*)"
    r"(?P<value>Some\(\"[^\"]*\"\)|\"[^\"]*\"|'[^']*'|(?:Bearer|Basic|AWS4-HMAC-SHA256)\s+\S+|[^\s\"',;&}\]<]+)",
    re.IGNORECASE,
)
_XML_VALUE = re.compile(
    r"<(?P<tag>\w*(?:AccessKey|Secret|Token|Signature|StringToSign|CanonicalRequest)\w*)>[^<]*<",
    re.IGNORECASE,
)
# A column called `token`, say, and its type: shown, unlike a password that is a plain word.
_PROSE = re.compile(r"[A-Za-z]{1,12}\??\Z")
_TELLING = re.compile(r"secret|passw|_key", re.IGNORECASE)
_AWS_KEY_ID = re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b")
_PLACEHOLDER = "(redacted)"


def is_secret(key: str) -> bool:
    """Return whether a storage option's name is that of a secret (never shown, never stored)."""
    return bool(_SECRET_KEY.search(key))


def redact(text: str) -> str:
    """Return `text` without user info in URIs and without values of secret-looking keys.

    Texts of Lance and of stores come through here: options as they are printed, signed URLs,
    request headers, and the XML in which S3 answers with the key id it was given.
    """
    if "://" in text:
        text = _URI_USERINFO.sub(_without_userinfo, text)
    text = _KEY_VALUE.sub(_without_value, text)
    if "<" in text:
        text = _XML_VALUE.sub(rf"<\g<tag>>{_PLACEHOLDER}<", text)
    return _AWS_KEY_ID.sub(_PLACEHOLDER, text)


def _without_value(match: re.Match[str]) -> str:
    prose = ": " in match["sep"] and _PROSE.match(match["value"])
    if prose and not _TELLING.search(match["key"]):
        return match.group(0)
    return f"{match['key']}{match['sep']}{_PLACEHOLDER}"


def _without_userinfo(match: re.Match[str]) -> str:
    if match["scheme"].lower() in _AZURE and ":" not in match["info"]:
        return match.group(0)
    return f"{match['scheme']}://{_PLACEHOLDER}@"
