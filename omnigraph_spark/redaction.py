"""Take secrets out of any text before a person or a log sees it."""

from __future__ import annotations

import re

_SECRET_KEY = re.compile(
    r"secret|password|passwd|token|credential|access_key|account_key|sas|private_key|session|pem",
    re.IGNORECASE,
)
_URI_USERINFO = re.compile(r"(?P<scheme>[a-zA-Z][a-zA-Z0-9+.\-]*://)[^/\s@]+@")
_KEY_VALUE = re.compile(
    r"(?P<key>[\w.\-]*(?:secret|password|passwd|token|credential|access_?key|account_?key|private_?key"
    r"|signature)[\w.\-]*)(?P<sep>[\"']?\s*[=:]\s*[\"']?)(?P<value>[^\s\"',;&}\]]+)",
    re.IGNORECASE,
)
_PLACEHOLDER = "(redacted)"


def is_secret(key: str) -> bool:
    """Tell whether a storage option's name is that of a secret (never shown, never stored)."""
    return bool(_SECRET_KEY.search(key))


def redact(text: str) -> str:
    """Return `text` without user info in URIs and without values of secret-looking keys."""
    text = _URI_USERINFO.sub(rf"\g<scheme>{_PLACEHOLDER}@", text)
    return _KEY_VALUE.sub(rf"\g<key>\g<sep>{_PLACEHOLDER}", text)
