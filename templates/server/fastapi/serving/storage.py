"""Where the model lies: in the image, in a folder, or in Cloud Storage, from where it is copied at the start."""

from __future__ import annotations

import importlib
import tempfile
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from serving.settings import Settings, Unusable

ADD = "build the image with `--extra google-cloud-storage`, or with the model in it: `--embed-model`"


def model_place(settings: Settings) -> Path:
    """Return the folder or file of the model on this machine."""
    uri = settings.storage_uri or settings.model_folder
    parts = urlsplit(uri)
    if parts.scheme == "gs":
        return _downloaded(uri, parts.netloc, parts.path.strip("/"))
    if parts.scheme not in ("", "file"):
        raise Unusable(f"the model is to lie at gs://BUCKET/FOLDER or at a path, and not at {uri}")
    place = Path(unquote(parts.path) if parts.scheme else uri)
    if not place.exists():
        raise Unusable(f"there is no model at {place}: embed one, mount one there, or set AIP_STORAGE_URI")
    return place


def _downloaded(uri: str, bucket: str, prefix: str) -> Path:
    client = _client()
    folder = Path(tempfile.mkdtemp(prefix="model-"))
    try:
        blobs = list(client.list_blobs(bucket, prefix=prefix))
        found = {name: it for it in blobs if (name := _inside(it.name, prefix))}
        for name, blob in found.items():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            blob.download_to_filename(str(target))
    except Exception as error:  # Google's client raises its own, those of its transport, and those of the disk
        raise Unusable(f"the model cannot be copied from {uri}: {error}") from error
    if not found:
        raise Unusable(f"there is no object at {uri}")
    return folder


def _client() -> Any:
    try:
        return importlib.import_module("google.cloud.storage").Client()
    except ImportError as error:
        raise Unusable(f"this image cannot read from Cloud Storage: {ADD}") from error
    except Exception as error:  # no credentials, or none that can be read
        raise Unusable(f"Cloud Storage cannot be used: {error}") from error


def _inside(name: str, prefix: str) -> str | None:
    """Return an object's path inside the model; None for one of another model, and for the mark of a folder."""
    if name != prefix and prefix and not name.startswith(f"{prefix}/"):
        return None
    path = PurePosixPath(name).name if name == prefix else name[len(prefix) :].strip("/")
    if not path or name.endswith("/"):
        return None
    if {"", ".", ".."} & set(path.split("/")):
        raise Unusable(f"an object's name is no path of a file: {name!r}")
    return path
