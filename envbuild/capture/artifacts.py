"""Model files of scikit-learn, XGBoost, LightGBM, CatBoost, spaCy and transformers, and pickles of any library."""

from __future__ import annotations

import re
import struct

from envbuild.capture.files import Facts
from envbuild.capture.formats import UBJSON_TAIL, add_writer, json_object, ubjson_version, zip_members, zip_search
from envbuild.capture.gcs import Unread
from envbuild.capture.pickles import LZ4, read_pickle
from envbuild.capture.places import LONGEST_PIECE, ModelPlace, search, short_text

_SKLEARN = re.compile(rb'"_sklearn_version":\s*\{[^{}]*"content":\s*"\\"([^"\\]{1,50})\\""')
_SKOPS = re.compile(rb'"_skops_version":\s*"([^"\\]{1,50})"')
_XGBOOST_JSON = re.compile(rb'"version":\s*(\[\d+,\s*\d+,\s*\d+\])')
_CATBOOST = re.compile(rb"(?:tags/v|CatBoost release )(\d+(?:\.\d+)+)")
_CATBOOST_INFO = re.compile(rb'"(catboost_version_info)"')
_LIGHTGBM_END = re.compile(rb"(end of trees|feature[_ ]importances:)")
_LEARNER = struct.Struct("<fIiiiII")
"""LearnerModelParam of XGBoost's binary format, up to the minor version (src/learner.cc of 1.0 to 2.1)."""
_LOWEST = (
    ("cloudpickle", "3.0", re.compile(r"cloudpickle\.cloudpickle\._(?:class|function)_setstate")),
    ("numpy", "2.0", re.compile(r"numpy\.(?:_core\.(?!_|multiarray|umath)|random\._(?:mt19937|pcg64|philox|sfc64)\.)")),
    ("numpy", "1.26.1", re.compile(r"numpy\._core\.")),
    ("numpy", "1.24", re.compile(r"numpy\.random\._pickle\.__bit_generator_ctor\n.*__(?:generator|randomstate)_ctor")),
    ("pandas", "3.0", re.compile(r"pandas\.StringDtype\n(?:.*\n)*pandas\..*StringArray")),
    ("scipy", "1.8", re.compile(r"scipy\.sparse\._(?:bsr|coo|csc|csr|dia|dok|lil)\.")),
)
"""Names in pickles, and the lowest release that has them; NumPy writes arrays of protocol 5 otherwise than others."""
_SPACY = re.compile(r"[>~=]=\s*(\d+(?:\.\d+)+)")


def read_pickled(facts: Facts, place: ModelPlace, path: str) -> None:
    """Read the opcodes of a pickle: its protocol, and the classes that whoever loads it has to have."""
    source = place.open(path)
    if source.head(4) == LZ4:
        facts["format"] = "joblib"
        facts["details"]["modules"] = "joblib,lz4"
        raise Unread("%s is compressed by LZ4, which is not read here" % path)
    found = read_pickle(source)
    facts["format"] = "joblib" if any(it.startswith("joblib.numpy_pickle.") for it in found.classes) else "pickle"
    for name, version in sorted(found.versions.items()):
        add_writer(facts, name, version)
    modules = {it.partition(".")[0] for it in found.classes} - {"", "builtins", "__builtin__", "copy_reg", "copyreg"}
    facts["details"]["protocol"] = str(found.protocol)
    facts["details"]["modules"] = ",".join(sorted(modules)) or None
    facts["details"]["classes"] = short_text(",".join(it for it in found.classes if it.partition(".")[0] in modules))
    names = "\n".join(found.classes)
    facts["details"].update(sorted(found.details.items()))
    for library, lowest, pattern in _LOWEST:
        if pattern.search(names):
            facts["details"].setdefault(library, lowest)
    if found.unread:
        raise Unread("%s: %s" % (path, found.unread))


def read_skops(facts: Facts, place: ModelPlace, path: str) -> None:
    """Read schema.json of skops (skops/io/_save.py), in which scikit-learn's objects keep their version."""
    source = place.open(path)
    schema = next((it for it in zip_members(source) if it.name == "schema.json"), None)
    if schema is None:
        raise Unread("%s is not a file of skops" % path)
    facts["format"] = "skops"
    add_writer(facts, "scikit-learn", zip_search(source, schema, _SKLEARN))
    add_writer(facts, "skops", zip_search(source, schema, _SKOPS))


def read_xgboost(facts: Facts, place: ModelPlace, path: str) -> None:
    """Read the version that XGBoost writes at the end of UBJSON, or near the start of its older binary format."""
    source = place.open(path)
    head = source.head(1000)
    if re.match(rb"\{(?:L\x00{7}|[iU])\x07learner\{", head):
        facts["format"] = "xgboost"
        length = min(UBJSON_TAIL, source.size)
        _add_xgboost(facts, path, ubjson_version(source.at(source.size - length, length)))
        return
    start = 4 if head.startswith(b"binf") else 0
    if re.search(rb"gbtree|gblinear|dart", head) and len(head) >= start + _LEARNER.size:
        _, features, _, _, _, major, minor = _LEARNER.unpack(head[start : start + _LEARNER.size])
        if 0 < features < 1 << 24 and (major, minor) <= (3, 1) and (major or not minor):
            facts["format"] = "xgboost"
            # Up to 0.90 there are zeros.
            add_writer(facts, "xgboost", "%d.%d" % (major, minor) if major else "0.90")
            facts["details"]["encoding"] = "binary"


def _add_xgboost(facts: Facts, path: str, version: str | None) -> None:
    add_writer(facts, "xgboost", version)
    if not version:
        raise Unread("%s does not say which XGBoost wrote it, or is cut short" % path)


def read_json_model(facts: Facts, place: ModelPlace, path: str) -> None:
    """Read XGBoost's or CatBoost's JSON; any other JSON is no model."""
    source = place.open(path)
    head = source.head(4096).lstrip()
    if re.match(rb'\{\s*"learner"\s*:', head):
        facts["format"] = "xgboost"
        windows = source.windows(0, source.size, backwards=True)
        version = search(windows, _XGBOOST_JSON)
        _add_xgboost(facts, path, ".".join(re.findall(r"\d+", version or "")))
    elif re.match(rb'\{\s*"(?:features_info|model_info|oblivious_trees|trees)"\s*:', head):
        version = search(source.windows(0, source.size), _CATBOOST)
        # Builds before 1.2 do not name their release.
        if version or search(source.windows(0, source.size), _CATBOOST_INFO):
            facts["format"] = "catboost"
            add_writer(facts, "catboost", version)


def read_catboost(facts: Facts, place: ModelPlace, path: str) -> None:
    """Read the text in which CatBoost's binary format names its build (catboost/libs/model)."""
    source = place.open(path)
    if source.head(4) != b"CBM1":
        raise Unread("%s is not a model of CatBoost" % path)
    facts["format"] = "catboost"
    add_writer(facts, "catboost", search(source.windows(0, source.size), _CATBOOST))


def read_lightgbm(facts: Facts, place: ModelPlace, path: str) -> None:
    """Take a text that begins as LightGBM's models do; it has the version of the format only."""
    source = place.open(path)
    found = re.match(rb"tree\r?\nversion=(v\d+)\r?\n", source.head(40))
    if found:
        facts["format"] = "lightgbm"
        facts["details"]["version"] = short_text(found.group(1))
        if search(source.windows(0, source.size), _LIGHTGBM_END) is None:
            raise Unread("%s is cut short" % path)


def read_description(facts: Facts, place: ModelPlace, path: str) -> None:
    """Read the description beside weights: of transformers and sentence-transformers, or of a spaCy pipeline."""
    source = place.open(path)
    if source.size > LONGEST_PIECE:
        return
    try:
        values = json_object(source.head(source.size))
    except Unread:
        return
    versions = values.get("__version__")
    if isinstance(versions, dict) and isinstance(versions.get("sentence_transformers"), str):
        facts["format"] = "sentence_transformers"
        names = {"sentence_transformers": "sentence-transformers", "pytorch": "torch"}
        for name, version in sorted(versions.items()):
            add_writer(facts, short_text(names.get(name, name)) or "", short_text(version))
    elif isinstance(values.get("spacy_version"), str) and "lang" in values:
        facts["format"] = "spacy"
        lowest = _SPACY.search(values["spacy_version"])
        add_writer(facts, "spacy", lowest.group(1) if lowest else None, short_text(values.get("spacy_git_version")))
        facts["details"]["requires"] = short_text("spacy" + values["spacy_version"])
    elif "transformers_version" in values or isinstance(values.get("architectures"), list):
        facts["format"] = "transformers"
        add_writer(facts, "transformers", short_text(values.get("transformers_version")))
        architectures = values.get("architectures")
        facts["details"]["architectures"] = short_text(
            ",".join(map(str, architectures)) if isinstance(architectures, list) else ""
        )
