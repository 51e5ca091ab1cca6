"""What answers requests in a serving image: the ready server, or the application's own."""

import json
import os
import re
import stat
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

from envbuild.capture.golden import NUMERIC
from envbuild.capture.places import STAMP_FOLDER
from envbuild.capture.redact import scrub_file_name
from envbuild.errors import StampError, UsageError, VerifyError
from envbuild.files import data_folder, open_inside
from envbuild.image.content import Content
from envbuild.manifest.model import Golden, Model, ModelFile, TrainingManifest
from envbuild.oci.digest import Digest
from envbuild.recipe import PREFIX
from envbuild.report import Reporter
from envbuild.serve.model import APP_FOLDER, MODEL_FOLDER, PORT, Origin, ServeOrder, Server
from envbuild.stamp.history import read_history
from envbuild.stamp.store import parse_model_uri
from envbuild.verify.golden.arrays import categories, elements
from envbuild.verify.golden.check import LocalModel, open_model, unfit
from envbuild.verify.rules.model import being, compare_files, describe_file, listed
from envbuild.verify.sources.model import StampedModel, Sums, as_stamped, is_rewritten, sums_of

REQUIREMENTS = ("fastapi>=0.100", "uvicorn>=0.23", "prometheus-client>=0.17")
"""Of the ready server. So wide that an old environment, none of whose pins can move, finds releases that fit it."""
SERVED = (
    "saved_model", "keras", "hdf5", "onnx", "torchscript", "torch_export", "pickle", "joblib", "skops", "xgboost",
    "lightgbm", "catboost",
)  # fmt: skip
"""Formats of models that the ready server loads, as manifests name them."""
_KINDS = {str: "bytes", bool: "bool", int: "int64", float: "float64"}
"""What the ready server calls the types of JSON's values."""
_METHODS = {
    "predict", "predict_proba", "predict_log_proba", "decision_function", "score_samples", "transform", "apply",
}  # fmt: skip
"""Methods by which scikit-learn's conventions name what a model gives."""
IGNORED = (
    ".git", ".hg", ".svn", "__pycache__", "*.pyc", ".venv", ".env", ".env.*", ".envrc", ".dockerignore", ".ds_store",
    ".pytest_cache", ".mypy_cache", ".ruff_cache", ".ipynb_checkpoints",
)  # fmt: skip
"""What no image needs, wherever it lies and in whatever case, unless .dockerignore brings it back with `!`."""
_IGNORE_FILE = ".dockerignore"
_OUT = f"leave it out by a line in {_IGNORE_FILE}"
_SECRET_NAMES = (
    "application_default_credentials.json", "credentials.db", "access_tokens.db", "id_rsa", "id_dsa", "id_ecdsa",
    "id_ed25519", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.ppk", "*.kdbx", ".netrc", "_netrc", ".pypirc", ".pgpass",
    ".my.cnf", ".boto", ".s3cfg", ".htpasswd", ".git-credentials", ".dockercfg", ".docker/config.json", ".vault-token",
    ".aws/credentials", ".kube/config", "kubeconfig", "*.kubeconfig", "kubeconfig.y*ml", "kaggle.json",
    ".config/gh/hosts.yml", ".huggingface/token", ".cargo/credentials", ".cargo/credentials.toml",
    ".streamlit/secrets.toml",
)  # fmt: skip
"""Files that hold keys or credentials, whatever is in them; in lower case."""
_PRIVATE_KEY = re.compile(
    rb"-----BEGIN (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----(?:\s|\\[nr])+(?:Proc-Type|Version|[A-Za-z0-9+/]{16})"
)
"""A key itself, and no program that looks for one."""
_GOOGLE_LOGIN = re.compile(rb'"type"\s*:\s*"(?:service_account|authorized_user)"')
_GOOGLE_SECRET = re.compile(rb'"(?:private_key|refresh_token)"\s*:\s*"[^"]')
_CLUSTER_KEY = re.compile(rb"""client-key-data["']?\s*:\s*["']?[A-Za-z0-9+/]{16}""")
"""Of a kubeconfig under any name."""
_NPM_LOGIN = re.compile(rb"""(?m)^[^#;\n]*_(?:auth|authToken|password)\s*=\s*["']?[^\s"'$]""")
"""What an .npmrc may hold, and does not where it names a registry alone, or a variable with the token."""
_LOOKED_AT = 256 << 10
"""Bytes: no file of keys is larger."""
_LISTED = 10
"""Files that are named; the others are counted."""
_COPY = "find out who wrote it; copy the model again from the run, or train and stamp it again"


def server_parts(order: ServeOrder, origin: Origin) -> Server:
    """Return what the image gets on top so that it answers requests.

    UsageError for a model that the ready server cannot load, and for a server that comes as an image of its own.
    """
    if order.server is None:
        return Server(cmd=order.cmd, ports=(PORT,))
    if order.server != "fastapi":
        todo = "leave out --app, --cmd, --embed-model and --slim: the model is only compared with that server"
        raise UsageError(f"{order.server} is an image of its own, and nothing is put into it", todo=todo)
    # The application's own files take the place of the server's of the same name.
    folder = data_folder("templates") / "server" / "fastapi"
    own = application_of(order) if order.app else Content("", {})
    paths = _columns(origin.manifest)
    paths |= {f"{APP_FOLDER}/{path.relative_to(folder)}": path for path in sorted(folder.rglob("*.py"))}
    files: dict[str, bytes | Path] = {
        path: file for path, file in paths.items() if path not in own.files and path not in own.links
    }
    model = (origin.stamped and origin.stamped.model) or origin.manifest.model
    # A format that nobody could read is left to the server's start.
    if f"{APP_FOLDER}/serving/loading.py" in files and model and model.format and model.format not in SERVED:
        what = f"the server fastapi serves {', '.join(SERVED)}, and the model is {model.format}"
        todo = "save the model as one of these, or bring a serving/loading.py that loads it: --app DIR"
        raise UsageError(what, where=model.uri, todo=todo)
    return Server(
        requirements=REQUIREMENTS,
        files=files,
        cmd=order.cmd or (f"{PREFIX}/bin/python", f"{APP_FOLDER}/serve.py"),
        ports=(PORT,),
        health="/health",
        predict="/predict",
        variables=_methods(origin.manifest.golden),
    )


def _methods(golden: Golden | None) -> tuple[tuple[str, str], ...]:
    """Have the ready server call the methods whose outputs the run recorded, where that is not `predict` alone."""
    names = [it.name for it in golden.outputs] if golden else ["predict"]
    return (("ENVBUILD_METHODS", ",".join(names)),) if names != ["predict"] and set(names) <= _METHODS else ()


def _columns(manifest: TrainingManifest) -> dict[str, bytes | Path]:
    """Tell the ready server the columns of the table that the run recorded: their types, and what JSON has for them."""
    golden = manifest.golden
    if golden is None or not golden.table or unfit(manifest):
        return {}
    columns = []
    for it in golden.inputs:
        column: dict[str, Any] = {"name": it.name, "dtype": it.dtype, "kind": it.dtype}
        if not NUMERIC.fullmatch(it.dtype):
            values, known = elements(it), categories(it)
            there = [value for value in (*known, *values) if value is not None and value == value]  # noqa: PLR0124 - NaN
            kind = _KINDS[type(there[0])] if there else None
            column |= {"kind": kind, "categories": known, "none": None in values}
        columns.append(column)
    return {f"{APP_FOLDER}/columns.json": json.dumps(columns).encode()}


def application_of(order: ServeOrder) -> Content:
    """Take the application of an order, without what the command itself writes; UsageError as `application`."""
    assert order.app is not None, "the caller looked"
    written = [order.build_request.out, order.build_request.cache, *filter(None, [order.build_request.archive])]
    for model in filter(None, (order.model, order.build_request.stamp)):
        uri = parse_model_uri(model)
        if uri.bucket is None:
            path = Path(uri.path)
            written.append((path if path.is_dir() else path.parent) / STAMP_FOLDER)
    return application(order.app, without=written)


def application(folder: Path, without: Iterable[Path] = ()) -> Content:
    """Return a folder as `/app`: files and links, with mode 0755 if their owner may execute them, else 0644.

    `without` are files and folders to leave out. UsageError for a missing or empty folder, for links that leave it,
    sockets and devices, and for keys and credentials: everyone who can pull the image can read them.
    Folders without files are left out.
    """
    if not folder.is_dir():
        raise UsageError("the application is to be a folder", where=str(folder), todo="give the folder with its files")
    root = folder.resolve()
    # Of a link to leave out, both the link and its target.
    places = (place for path in without for place in (path.absolute().parent.resolve() / path.name, path.resolve()))
    excluded = frozenset(place.relative_to(root).as_posix() for place in places if place.is_relative_to(root))
    try:
        found = {path: os.lstat(root / path) for path in _walk(root, excluded)}
    except OSError as error:
        what = f"the application cannot be read: {error.strerror}"
        raise UsageError(what, where=str(error.filename), todo=f"see that it may be read, or {_OUT}") from error
    files = {path: state for path, state in found.items() if stat.S_ISREG(state.st_mode)}
    links = {path for path, state in found.items() if stat.S_ISLNK(state.st_mode)}
    for path in sorted(found):
        if path != path.encode(errors="replace").decode():
            raise UsageError(f"a file's name is not UTF-8: {path!a}", where=str(root), todo=f"rename it, or {_OUT}")
        if path not in files and path not in links:
            what = f"{path!r} is a socket, a pipe or a device, which no image can have"
            raise UsageError(what, where=str(root), todo=f"give the folder without it, or {_OUT}")
    if not files and not links:
        todo = f"give the folder that has its files, and see what its {_IGNORE_FILE} leaves out"
        raise UsageError("the application has no file", where=str(folder), todo=todo)
    _check_secrets(files, root)
    return Content(
        line="application",
        files={f"{APP_FOLDER}/{path}": root / path for path in files},
        executable=frozenset(f"{APP_FOLDER}/{path}" for path, state in files.items() if state.st_mode & stat.S_IXUSR),
        links={f"{APP_FOLDER}/{path}": _target(root, path) for path in links},
    )


def _walk(root: Path, without: frozenset[str]) -> Iterator[str]:
    """Yield the paths of everything but folders that nothing leaves out; OSError."""
    file, lines = root / _IGNORE_FILE, list[str]()
    if os.path.lexists(file):
        try:
            lines = [line.strip() for line in file.read_text(encoding="utf-8-sig").splitlines()]
        except UnicodeDecodeError as error:
            raise UsageError(f"{_IGNORE_FILE} is not UTF-8", where=str(file), todo="save it as UTF-8") from error
    patterns = [line for line in lines if line and not line.startswith("#")]
    # `!src` brings no src/.env back: only what names it does.
    brought_back = _matcher([it[1:] for it in patterns if it.startswith("!") and _has_part(it[1:], IGNORED)])
    for path in _matcher(patterns).walk(str(root)):
        is_excluded = not without.isdisjoint((path, *map(str, PurePosixPath(path).parents)))
        ignored = is_excluded or (_has_part(path, IGNORED) and not brought_back.matches(path))
        if not ignored and not stat.S_ISDIR(os.lstat(root / path).st_mode):
            yield path


def _matcher(patterns: Iterable[str]) -> Any:
    from docker.utils.build import Pattern, PatternMatcher  # noqa: PLC0415 - Docker's library is slow to import
    from docker.utils.fnmatch import fnmatchcase as matches  # noqa: PLC0415

    class Cased(Pattern):  # type: ignore[misc]  # Docker tells Data from data, and its Python client does not
        def match(self, filepath: str) -> bool:
            return bool(matches(filepath, self.cleaned_pattern))

    found = PatternMatcher([])
    found.patterns = [it for it in map(Cased, patterns) if it.dirs]
    for pattern in found.patterns:
        try:
            pattern.match("")
        except re.error as error:
            what = f"a line of {_IGNORE_FILE} is not a valid pattern: {pattern.cleaned_pattern!r}"
            raise UsageError(what, where=_IGNORE_FILE, todo="write it as Docker's documentation says") from error
    return found


def _has_part(path: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(part, pattern) for part in path.lower().split("/") for pattern in patterns)


def _target(root: Path, path: str) -> str:
    """Where a link points in the image: the same file, by a relative path; UsageError where that is not in the folder.

    Links to links are followed, so that none leads through a place outside.
    """
    aim = Path(os.path.realpath(root / path))
    if not aim.is_relative_to(root):
        what = f"the link {path!r} leads out of the application, to {aim}"
        raise UsageError(what, where=str(root), todo=f"put a copy of it there, or {_OUT}")
    # The folder that the link itself lies in is none behind a link, as no link to a folder is gone into.
    target = os.path.relpath(aim, (root / path).parent)
    if target != target.encode(errors="replace").decode():
        raise UsageError(f"the link {path!r} has a target that is not UTF-8", where=str(root), todo=_OUT)
    return target


def _check_secrets(paths: Iterable[str], root: Path) -> None:
    """Refuse keys and credentials, by their names and by what is in them."""

    def is_named(path: str) -> bool:
        return any(fnmatchcase(f"/{path.lower()}", f"*/{pattern}") for pattern in _SECRET_NAMES)

    found = sorted(path for path in paths if is_named(path) or _holds_secret(root / path))
    if found:
        more = [f"and {len(found) - _LISTED} more"] if len(found) > _LISTED else []
        lines = ["the application holds keys or credentials, and a layer can be read by all who may pull it:"]
        lines += [*map(repr, found[:_LISTED]), *more]
        todo = f"leave them out by lines in {_IGNORE_FILE}, and mount them when the container runs"
        raise UsageError("\n  - ".join(lines), where=str(root), todo=todo)


def _holds_secret(file: Path) -> bool:
    try:
        with file.open("rb") as opened:
            data = opened.read(_LOOKED_AT)
    except OSError as error:
        what = f"the application cannot be read: {error.strerror}"
        raise UsageError(what, where=str(file), todo=f"see that it may be read, or {_OUT}") from error
    if data.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) or b"\0" in data[:2]:
        data = data.replace(b"\0", b"")  # UTF-16 or UTF-32 as it would be in ASCII
    google = _GOOGLE_LOGIN.search(data) and _GOOGLE_SECRET.search(data)
    npm = file.name.lower() == ".npmrc" and _NPM_LOGIN.search(data)
    return bool(_PRIVATE_KEY.search(data) or _CLUSTER_KEY.search(data) or google or npm)


@contextmanager
def embedded(origin: Origin, cache: Path, report: Reporter) -> Iterator[Content]:
    """Yield the model's files as `/model`; those in Cloud Storage are copied to the cache's disk meanwhile.

    VerifyError if the model is not the stamped one, or a file is changed, missing or additional. A file without a
    recorded digest is a warning. UsageError if only a manifest was given; StampError if the model cannot be read.
    """
    if origin.stamped is None:
        todo = "give the model's own URI or folder in place of the manifest"
        raise UsageError("there is no model to embed: only a manifest was given", where="--embed-model", todo=todo)
    report.step(f"model {origin.stamped.uri}")
    with open_model(origin.stamped.uri, cache, report) as model:
        _check_stamp(origin.stamped)
        stamp = origin.stamped.stamp
        recorded = as_stamped(origin.manifest.model, stamp.content if stamp else None, origin.stamped.uri)
        found = _digests(model, recorded, report)
        _check_files(recorded, model, found, report, exact=origin.stamped.history.proven is not None)
        report.note(f"{len(found)} files of the model, {model.size / 1e6:.1f} MB")
        yield Content(
            line="model",
            files={f"{MODEL_FOLDER}/{path}": file for path, file in model.files.items()},
            known={f"{MODEL_FOLDER}/{path}": it.sha256 for path, it in found.items()},
        )


def _check_stamp(stamped: StampedModel) -> None:
    """The stamp hangs on one file, which must still be the one that it was written for, after it was fetched too."""
    where, todo = stamped.uri, "stamp the model again from its run: envbuild from-manifest MANIFEST --stamp MODEL"
    if stamped.stamp is None:
        raise VerifyError(
            f"{stamped.history.unstamped}, so nothing says which run it comes from", where=where, todo=todo
        )
    now = read_history(stamped.uri, whole=False)
    anchor = stamped.stamp.anchor
    if not now.records or not now.current or now.records[0].stamp is None or now.records[0].stamp.anchor != anchor:
        what = f"the model was replaced after it was stamped: {anchor.name} is not at generation {anchor.generation}"
        raise VerifyError(what, where=where, todo=todo)


def _digests(model: LocalModel, recorded: Model | None, report: Reporter) -> dict[str, Sums]:
    """Read the files that were not read so far, or all where the record has the other digest of some."""
    by_sum = any(it.crc32c and not it.sha256 for it in recorded.files) if recorded else False
    found, done = {}, 0
    for path, file in model.files.items():
        known = None if by_sum else model.digests.get(path)
        try:
            with open_inside(model.folder, file) as opened:
                found[path] = Sums(Digest(known), None, file.stat().st_size) if known else sums_of(opened)
        except OSError as error:
            todo = "see that it is there and may be read; copy files in place of links: cp -rL MODEL COPY"
            raise StampError(f"the model cannot be read: {error.strerror}", where=str(file), todo=todo) from error
        done += found[path].size
        report.progress("checking the model", done, model.size)
    return found


def _check_files(
    recorded: Model | None, model: LocalModel, found: Mapping[str, Sums], report: Reporter, *, exact: bool
) -> None:
    if recorded is None or not recorded.files:
        report.warn("the run's manifest lists no files of the model; only its stamp was checked")
        return
    files = tuple(
        ModelFile(
            path=scrub_file_name(path),  # as in a manifest
            size=it.size,
            sha256=it.sha256.hex,
            crc32c=it.crc32c,
            generation=model.generations.get(path),
        )
        for path, it in found.items()
    )
    seen = compare_files(recorded, Model(uri=model.uri, files=files, file_count=len(files)), by_name=True)
    if len(seen.new) < len(found):
        todo = "give the model's files names without control characters, users and passwords"
        raise VerifyError("two of the model's files have one name in a manifest", where=model.uri, todo=todo)
    missing, extra = (
        tuple(sorted(it)) for it in (seen.old.keys() - seen.new.keys(), seen.new.keys() - seen.old.keys())
    )
    again = [path for path in seen.common if exact and is_rewritten(seen.old[path], seen.new[path])]
    groups = (
        (seen.changed, "not what the run saved"),
        (tuple(path for path in again if path not in seen.changed), "written again"),
        (missing, "missing"),
        (extra if recorded.file_count == len(recorded.files) else (), "not in the run's manifest"),
    )
    if paths := [path for names, _ in groups for path in names]:
        faults = "; ".join(being(names, how) for names, how in groups if names)
        old, new = (listed([describe_file(path, its.get(path)) for path in paths]) for its in (seen.old, seen.new))
        what = f"the model is not the one that the run saved: {faults} (recorded {old}; found {new})"
        raise VerifyError(what, where=model.uri, todo=_COPY)
    if extra:
        report.warn(f"the run's manifest lists {len(seen.old)} files of the model; {len(extra)} more were not compared")
    if seen.by_size:
        report.warn(f"of {seen.by_size} files of the model the run's manifest has no digest; their size is the same")
