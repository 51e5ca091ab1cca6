"""What must never be recorded, cut out of texts."""

from __future__ import annotations

import re

REDACTED = "[redacted]"
USERINFO = re.compile(r"(?<=://)(?:[^\s/?#]*@|[^\s/?#@:]*:(?!\d*(?:[/?#]|$))\S*@)|^[^/@\s]+@(?=[^/:\s]+:)")
"""Of a URL; of one whose password has a raw slash, which people do write; of scp's `user@host:path`."""
NAMED_SECRET = re.compile(
    r"""(?i)((?:passw(?:or)?d|secret|token(?!iz)|credentials?|signature|[?&;]sig|(?:api|private|access)[_-]?key)"""
    r"""[\w-]*["']?\s*[=:]\s*["']?)[^\s"',;&]+"""
)
TOKEN = re.compile(
    r"-----BEGIN [^-]+-----(?s:.*?)(?:-----END [^-]+-----|\Z)"
    r"|\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*|\b(?:AKIA|ASIA)[A-Z0-9]{16}"
    r"|\b(?:AIza|ya29\.|gh[pousr]_|github_pat_|glpat-|hf_|sk-|xox[abeprs]-|pypi-Ag|npm_|GOCSPX-)[\w.-]{16,}"
    r"|(?i:(?<=\bbearer )\S+)"
)
SECRET_NAME = re.compile(r"(?i)passw|secret|token|credential|api_?key|(?:^|_)(?:key|auth|pass|pwd)(?:_|$)")


def scrub(text: str) -> str:
    """Cut what looks like a secret: user and password of URLs, tokens, private keys, `password=...`."""
    return TOKEN.sub(REDACTED, NAMED_SECRET.sub(r"\1" + REDACTED, USERINFO.sub("", text)))
