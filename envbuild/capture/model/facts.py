"""The model of a run."""

from __future__ import annotations

import re
from typing import Callable, List, Mapping, Optional, Tuple

from envbuild.capture.gcs import Unread
from envbuild.capture.model.containers import read_container
from envbuild.capture.model.others import read_onnx, read_orbax, read_safetensors
from envbuild.capture.model.places import MOST_FILES, Place, place_of
from envbuild.capture.model.source import said
from envbuild.capture.model.tensorflow import (
    read_checkpoint,
    read_graph,
    read_meta_graph,
    read_saved_model,
    read_saved_text,
)
from envbuild.capture.reading import Facts, present
from envbuild.capture.redact import scrub_file_name, scrub_line

Reader = Callable[[Facts, Place, str], None]
READERS: List[Tuple[str, Reader]] = [
    (r"saved_model\.pb", read_saved_model),
    (r"saved_model\.pbtxt", read_saved_text),
    (r".*\.keras", read_container),
    (r".*\.pt2", read_container),
    (r".*\.onnx", read_onnx),
    (r"_CHECKPOINT_METADATA", read_orbax),
    (r".*\.safetensors", read_safetensors),
    (r".*\.(h5|hdf5)", read_container),
    (r".*\.meta", read_meta_graph),
    (r".*\.index", read_checkpoint),
    (r".*\.(pt|pth|ckpt)|(pytorch|adapter)_model.*\.bin", read_container),
    (r"(?!fingerprint|keras_metadata).*\.pb", read_graph),
    (r".*\.(pkl|pickle|joblib)", read_container),
]
"""Names of files, and what reads them: what says most about a model first."""
READABLE = re.compile("|".join("(?:%s)" % pattern for pattern, _ in READERS))


def model_facts(uri: str, recorded: Optional[Mapping[str, int]] = None, seconds: float = 0) -> Facts:
    """Read what the files of a model say: where they lie, who wrote them; what cannot be read is said.

    `recorded` and `seconds`: see Place and LocalPlace.
    """
    try:
        place = place_of(uri, recorded, seconds)
    except Unread as error:
        return {"uri": scrub_line(uri), "unread": said(str(error))}
    except ValueError:
        return {"uri": scrub_line(uri), "unread": "it is no path, file:// or gs:// that can be meant"}
    return facts_of_place(uri, place)


def facts_of_place(uri: str, place: Place) -> Facts:
    """Read the files of a model that were found."""
    facts: Facts = {"uri": scrub_line(uri), "written_by": [], "details": {}}
    faults = list(place.faults)
    _describe(facts, place)
    try:
        _read(facts, place)
    except Unread as error:
        faults.append(str(error))
    more = " (and %d more)" % (len(faults) - 1) if faults[1:] else ""
    facts["unread"] = (said(faults[0]) or "") + more if faults else None
    described: Facts = present(facts)
    return described


def _describe(facts: Facts, place: Place) -> None:
    files = sorted(place.files[:MOST_FILES], key=lambda file: str(file["path"]))
    facts["files"] = [dict(file, path=scrub_file_name(file["path"])) for file in files]
    if place.whole:
        facts["file_count"] = len(place.files)
        facts["size"] = sum(file["size"] for file in place.files)


def _read(facts: Facts, place: Place) -> None:
    """Read the file that says most about the model: the one that lies highest, of those the first of READERS."""
    ranked = [
        (file["path"].count("/"), rank, file["path"], reader)
        for file in place.files
        if READABLE.fullmatch(file["path"].rsplit("/")[-1])
        for rank, (pattern, reader) in enumerate(READERS)
        if re.fullmatch(pattern, file["path"].rsplit("/")[-1])
    ]
    if ranked:
        _, _, path, reader = min(ranked, key=lambda found: found[:3])
        reader(facts, place, path)
