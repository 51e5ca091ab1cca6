"""Imports httpx without its command line, whose libraries take as long to import as all the rest of it."""

import sys

if "httpx" not in sys.modules:
    # httpx takes an ImportError there for an extra that is not installed.
    sys.modules["httpx._main"] = None  # type: ignore[assignment]
    import httpx  # noqa: F401

    del sys.modules["httpx._main"]
