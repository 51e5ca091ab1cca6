"""Where a manifest goes: a file or an object in Cloud Storage, whole or not at all, and what people are told."""

from __future__ import annotations

import os
import re
import sys
from typing import Any

from envbuild.capture.gcs import CloudStorage, Unread, split_uri
from envbuild.capture.reading import Facts, write_whole
from envbuild.capture.redact import scrub_line


def check_out(out: Any) -> None:
    """ValueError for what can be neither a file nor an object of Cloud Storage, before anything is done."""
    path = None if out is None else os.fspath(out)
    scheme = re.match("[A-Za-z][A-Za-z0-9+.-]*(?=://)", path or "")
    if scheme and scheme.group() != "gs":
        raise ValueError("out: a manifest goes to a file or to gs://BUCKET/OBJECT, not to %s://" % scheme.group())
    if scheme and re.fullmatch("gs://[^/]+/.*[^/]", str(path)) is None:
        raise ValueError("out: give the object's name as well: gs://BUCKET/FOLDER/manifest.json")
    if path == "":
        raise ValueError("out: is empty; give the path of a file")
    if path is not None and os.path.isdir(path):
        raise ValueError("out: %s is a folder; give the path of a file" % scrub_line(path))


def write_out(out: Any, text: str) -> None:
    """Write to a path, or to `gs://bucket/object`; OSError if that cannot be done."""
    if _is_object(out):
        _upload(out, text)
    else:
        write_whole(os.path.realpath(out), text)


def _is_object(out: Any) -> bool:
    return isinstance(out, str) and out.startswith("gs://")


def _upload(uri: str, text: str) -> None:
    try:
        _Bucket().write(uri, text)
    except Unread as reason:
        raise OSError("%s: %s" % (uri, reason)) from None


class _Bucket(CloudStorage):
    """Writes as well."""

    def write(self, uri: str, text: str) -> None:
        """Write an object, which appears whole by itself; Unread."""
        bucket, name = split_uri(uri)
        with self._asking("storage.objects.create") as how:
            blob = self.client.bucket(bucket).blob(name)
            blob.upload_from_string(text.encode("utf-8"), content_type="application/json", **how)


def tell_disagreements(manifest: Facts) -> None:
    """Say on stderr what does not fit together, one block for each."""
    for item in manifest.get("disagreements") or ():
        sides = ["  %s: %s" % (side, value) for side, value in item["values"].items()]
        say("\n".join(["warning: %s" % item["message"], *sides]))


def say(text: str) -> None:
    """Write lines to stderr, if there is one."""
    if sys.stderr is not None:
        sys.stderr.write("\n".join(map(_escaped, text.split("\n"))) + "\n")


def _escaped(text: str) -> str:
    """Escape what would drive a terminal, or a CI system that reads the log: what a model's files say is anyone's.

    GitHub Actions runs what begins a line with `::`, and `##[...]` anywhere in it.
    """
    plain = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
    return re.sub(r"#(?=#\w*\[)", r"\\x23", re.sub(r"^( *):(?=:)", r"\1\\x3a", plain))
