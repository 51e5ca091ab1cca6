"""The whole record: all facts, put together in the order of the schema, by a call or by a Keras callback.

Facts that do not fit together are named in it, and on stderr.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import time
from contextlib import contextmanager
from typing import Any, Iterable, Iterator, Sequence

from envbuild.capture.checkout import LARGEST_PATCH, code_facts
from envbuild.capture.conda import conda_facts
from envbuild.capture.contract import contract_facts
from envbuild.capture.distributions import find_distributions
from envbuild.capture.files import Facts, manifest_text, normal_name, present, say
from envbuild.capture.frameworks import TENSORFLOW, find_frameworks, numerics_facts, used_framework
from envbuild.capture.gcs import check_out, write_out
from envbuild.capture.golden import golden_facts
from envbuild.capture.host import accelerator_facts, cpu_facts, host_facts, platform_facts, python_facts
from envbuild.capture.imports import LoadedFiles
from envbuild.capture.integrity import installation_facts
from envbuild.capture.model import model_facts
from envbuild.capture.native import native_facts
from envbuild.capture.places import NO_FILE, NO_OBJECT
from envbuild.capture.redact import scrub, scrub_line
from envbuild.capture.variables import entry_facts, recorded_variables

SCHEMA_VERSION = "1.1"
TOOL = "envbuild 0.1.0"
"""A literal, as the standalone file cannot ask the package."""
MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
CHIEFS = ("chief", "master", "workerpool0")
"""Kinds of tasks that lead: of TF_CONFIG, of TensorFlow 1, of CLUSTER_SPEC in Vertex AI."""


def capture(  # noqa: PLR0913 - each is one kind of fact
    model_uri: str | None = None,
    out: str | os.PathLike[str] | None = None,
    variables: Iterable[str] = (),
    *,
    requires: Iterable[str] = (),
    data: Iterable[str] = (),
    preprocessing: Iterable[str] = (),
    golden: Any = None,
    command: Sequence[str] | None = None,
    patch: bool = False,
    deep: bool = False,
    load: Iterable[str] = (),
    process: str = "run",
) -> Facts:
    """Record the running interpreter's environment, and write it to `out` atomically.

    `variables` names environment variables to record besides the built-in ones, `requires` those that the program
    depends on. `data` are places it reads from, as `URI` or `NAME=URI`, `preprocessing` paths of code that serving has
    to share. `golden` is a sample that `golden_sample` made. `command` is the run's own, where this process is
    another. `patch` records uncommitted changes, `deep` hashes every installed file, `load` names modules to import
    first, so that the libraries they load are recorded. `out` may be a path or `gs://bucket/object`. Disagreements are
    also printed to stderr. ValueError for invalid arguments, OSError if `out` cannot be written.
    """
    lists = {"variables": variables, "requires": requires, "data": data, "preprocessing": preprocessing}
    check_lists(dict(lists, load=load, command=command))
    check_out(out)
    environment = environment_facts(variables, command=command, patch=patch, deep=deep, load=load, process=process)
    contract = contract_facts(requires, data, preprocessing)
    manifest = complete(environment, contract, model_uri or os.environ.get("AIP_MODEL_DIR"), golden)
    if out is not None:
        write_out(out, manifest_text(manifest))
    tell_disagreements(manifest)
    _tell_other_minor(manifest)
    tell_unset(manifest)
    tell_unused(manifest)
    return manifest


def _tell_other_minor(manifest: Facts) -> None:
    """Warn of a model of another minor version of scikit-learn; envbuild's own commands know more libraries' rules."""
    installed = _installed_versions(manifest).get("scikit-learn", "none")
    model = manifest.get("model") or {}
    writers = [it for one in (model, *(model.get("artifacts") or ())) for it in one.get("written_by") or ()]
    for version in {str(it["version"]) for it in writers if it["name"] == "scikit-learn"}:
        if version.split(".")[:2] != installed.split(".")[:2]:
            what = "warning: scikit-learn %s wrote the model, and %s is installed here" % (version, installed)
            say("%s, which may predict other numbers; capture the environment that saved the model" % what)


def tell_unset(manifest: Facts) -> None:
    """Warn of variables that the program requires and that the captured process does not have: a name may be wrong."""
    variables = (manifest.get("contract") or {}).get("variables") or ()
    unset = ", ".join(item["name"] for item in variables if not item["present"])
    if unset:
        say("warning: required, but not set here: %s; correct the name, or set it where this runs" % unset)


def tell_unused(manifest: Facts) -> None:
    """Say how many distributions were not imported, where these are most of them, and what an image can leave out."""
    imported, installed = len(manifest.get("imported") or ()), len(manifest["distributions"])
    if imported and installed - imported >= max(10, imported):
        what = "note: this process imported %d of %d installed distributions" % (imported, installed)
        say("%s; `envbuild from-manifest --only-imported` leaves out what these do not require" % what)


def environment_facts(
    variables: Iterable[str] = (),
    *,
    command: Sequence[str] | None = None,
    patch: bool = False,
    deep: bool = False,
    load: Iterable[str] = (),
    process: str = "run",
) -> Facts:
    """Describe the interpreter and the surroundings of its process; `process` is `run` or `fresh`."""
    load = check_modules(load)
    notes = _load_modules(load)
    distributions = find_distributions(patch)
    # A fresh process has imported what it was told to.
    loaded = LoadedFiles() if process == "run" or load else None
    installation = installation_facts(distributions, deep, loaded=loaded)
    frameworks, code = find_frameworks(distributions), code_facts(patch)
    if installation.get("unreadable"):
        what = "these metadata folders have no valid name or version, so they count as no distribution"
        say("warning: %s: %s" % (what, ", ".join(installation["unreadable"])))
    notes += _missing_patches(code, distributions.values()) if patch else []
    # Only the training process itself knows these facts.
    unknown = [] if process == "run" else ["numerics"] if command else ["entry", "numerics"]
    source: Facts = {"format": "capture", "tool": TOOL, "unknown": unknown, "notes": notes}
    return {
        "schema_version": SCHEMA_VERSION,
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "source": {key: value for key, value in source.items() if value},
        "python": python_facts(),
        "platform": platform_facts(),
        "distributions": list(distributions.values()),
        "installation": installation,
        "imported": sorted(loaded.distributions) if loaded else None,
        "conda": conda_facts(),
        "framework": frameworks[0] if frameworks else None,
        "frameworks": frameworks,
        "accelerator": accelerator_facts(),
        "cpu": cpu_facts(),
        "native": native_facts(distributions, process),
        "numerics": numerics_facts() if process == "run" else None,
        "variables": recorded_variables(variables),
        "code": code,
        "entry": entry_facts(command, process),
        "host": host_facts(),
    }


def _missing_patches(code: Facts | None, distributions: Iterable[Facts]) -> list[str]:
    """Warn on stderr of each checkout that changed and has no patch; return the sentences."""
    notes = []
    origins = ((item["name"], item["origin"]) for item in distributions)
    for name, facts in (("the code", code or {}), *origins):
        if facts.get("dirty") and not facts.get("patch"):
            reason = "it is larger than %d bytes, or git gave no answer" % LARGEST_PATCH
            notes.append("the uncommitted changes of %s are not recorded: %s" % (name, reason))
            say("warning: %s" % notes[-1])
    return notes


def complete(environment: Facts, contract: Facts | None, model_uri: str | None, golden: Any) -> Facts:
    """Add the facts outside of the process to an environment, and its disagreements."""
    uri = scrub_line(model_uri or "") or None
    model = model_facts(model_uri) if model_uri else None
    outside = {"contract": contract, "model_uri": uri, "model": model}
    manifest: Facts = present(dict(environment, **outside, golden=golden_facts(golden)))
    if manifest.get("frameworks"):
        manifest["framework"] = used_framework(manifest)
        if manifest["framework"] is None:
            del manifest["framework"]
            manifest["source"].setdefault("unknown", []).append("framework")
    return dict(manifest, disagreements=present(find_disagreements(manifest)))


def check_modules(names: Iterable[str]) -> list[str]:
    """Return the names of modules; ValueError for one that is no such name."""
    modules = list(names)
    for name in modules:
        if not MODULE.fullmatch(name):
            raise ValueError("load: %r is not the name of a module" % name)
    return modules


def _load_modules(names: Iterable[str]) -> list[str]:
    """Import modules; return a sentence for each that failed, printed to stderr too."""
    failures = []
    for name in names:
        folder = os.getcwd()  # to which the paths of all options are relative
        try:
            with _stdout_to_stderr():
                importlib.import_module(name)
        except (Exception, SystemExit) as error:
            reason = " ".join(scrub("%s: %s" % (type(error).__name__, error)).split())
            failures.append("%s could not be loaded: %s" % (name, reason))
        finally:
            os.chdir(folder)
    for sentence in failures:
        say("warning: %s" % sentence)
    return failures


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Send the output of imports to stderr, from C as well, as stdout gets the manifest."""
    stdout = None
    try:
        sys.stdout.flush()
        stdout = os.dup(1)
        os.dup2(2, 1)
    except (OSError, AttributeError, ValueError):
        # Either is closed.
        stdout = None
    try:
        yield
    finally:
        if stdout is not None:
            sys.stdout.flush()
            os.dup2(stdout, 1)
            os.close(stdout)


def check_lists(options: Facts) -> None:
    """ValueError for a text where `capture()` takes a list of texts: each letter would count as one."""
    for name in ("variables", "requires", "data", "preprocessing", "load", "command"):
        if isinstance(options.get(name), (str, bytes)):
            # Without the text, which may be a secret value.
            raise ValueError('%s is one text, and must be a list of texts: %s=["..."]' % (name, name))  # noqa: TRY004


def keras_callback(golden_inputs: Any = None, **options: Any) -> Any:
    """Return a callback for `fit` that captures when training ends, with the options of `capture`.

    It is one of the Keras that is imported when this is called: tf.keras 2, tf_keras, or Keras 3. `golden_inputs` is a
    small batch, for which the golden sample records the model's predictions. A capture that fails prints a warning and
    never fails the training. Of distributed workers only the chief captures, as TF_CONFIG or CLUSTER_SPEC names it;
    without both, every process captures, so give each another `out`. RuntimeError if no Keras is imported, ValueError
    for a text instead of a list.
    """
    check_lists(options)

    class Capture(_callback_class()):  # type: ignore[misc]
        def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002 - Keras gives it
            try:
                if is_chief():
                    inputs = golden_inputs
                    sample = {} if inputs is None else {"golden": (inputs, self.model.predict_on_batch(inputs))}
                    capture(**dict(options, **sample))
            except Exception as error:
                say("warning: the environment was not captured: %s" % scrub(str(error)))

    return Capture()


def _callback_class() -> Any:
    """Find the base class in the imported Keras: `fit` refuses a callback of another one."""
    legacy = os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true")
    for name in ("tf_keras", "keras") if legacy else ("keras", "tf_keras"):
        if name in sys.modules:
            return sys.modules[name].callbacks.Callback
    if "tensorflow" in sys.modules:
        # Imports Keras at this moment, where the program has not used it yet.
        return sys.modules["tensorflow"].keras.callbacks.Callback
    raise RuntimeError("keras_callback() needs Keras: import it, or TensorFlow, before")


def is_chief() -> bool:
    """Tell whether this process leads its cluster; a single process does."""
    for name in ("TF_CONFIG", "CLUSTER_SPEC"):
        try:
            settings = json.loads(os.environ.get(name) or "{}")
            cluster, task = settings.get("cluster") or {}, settings.get("task") or {}
            kind, index = str(task.get("type", "chief")), int(task.get("index", 0))
        except (ValueError, TypeError, AttributeError):
            # An invalid variable must not prevent the record.
            continue
        without_chief = not any(chief in CHIEFS for chief in cluster)
        if index != 0 or not (kind in CHIEFS or (kind == "worker" and without_chief)):
            return False
    return True


WRITERS = {"tensorflow": ("tensorflow",), "keras": ("keras", "tf-keras"), "torch": ("torch",), "pytorch": ("torch",)}
"""The writers that models name, and their distributions; TensorFlow's other names are looked up."""
SHIMS = {"tensorflow-intel", "tensorflow-macos", "tensorflow-cpu-aws"}
"""Distributions that `tensorflow` itself depends on where it brings no files of its own."""
BACKENDS = ("tensorflow", "jax", "torch")
OLDER = {
    "tensorflow": "a model of TensorFlow 1 runs under 2 only through tf.compat.v1",
    "keras": "Keras 3 does not load every model of Keras 2; tf-keras with TF_USE_LEGACY_KERAS=1 does",
}


def find_disagreements(manifest: Facts) -> list[Facts]:
    """Compare the model's writer with the installed distributions, and these with each other."""
    checks = (_versions, _missing_model, _builds, _cuda, _backend, _changed_files)
    return [found for check in checks for found in check(manifest)]


def tell_disagreements(manifest: Facts) -> None:
    """Warn of disagreements on stderr, one block for each."""
    for item in manifest.get("disagreements") or ():
        sides = ["  %s: %s" % (side, value) for side, value in item["values"].items()]
        say("\n".join(["warning: %s" % item["message"], *sides]))


def _disagreement(fact: str, message: str, **values: str) -> Facts:
    return {"fact": fact, "values": values, "message": message}


def _versions(manifest: Facts) -> Iterator[Facts]:
    """Compare the versions inside the model with those that are installed."""
    installed = _installed_versions(manifest)
    for writer in (manifest.get("model") or {}).get("written_by") or []:
        name, wrote = writer["name"], writer["version"]
        has = [installed[key] for key in WRITERS.get(name, ()) if key in installed]
        if name not in WRITERS or any(_same_version(wrote, version) for version in has):
            continue
        # TensorFlow before 2.6 brought Keras without a distribution of its own.
        if not has and name == "keras" and "tensorflow" in installed:
            continue
        message = "The model was written by %s %s, which is not installed" % (name, wrote)
        if has:
            message = "The model was written by %s %s, but %s is installed" % (name, wrote, has[0])
            older = OLDER.get(name) if _major(wrote) != _major(has[0]) else None
            message += ": " + (older or "what this environment does to it may differ from the training run")
        yield _disagreement("%s version" % name, message, model=wrote, environment=has[0] if has else "not installed")


def _installed_versions(manifest: Facts) -> dict[str, str]:
    """Return versions by distribution, and of frameworks by their own names."""
    named = {normal_name(item["name"]): item.get("version") for item in manifest.get("distributions") or []}
    named.update((item["name"], item["version"]) for item in manifest.get("frameworks") or [])
    return {name: version for name, version in named.items() if version}


def _same_version(one: str, other: str) -> bool:
    """Compare versions: a local label or post-release that only one of them has does not count."""
    (first, *extras), (second, *others) = _version_parts(one), _version_parts(other)
    return first == second and all("" in pair or len(set(pair)) == 1 for pair in zip(extras, others))  # noqa: B905


def _version_parts(version: str) -> tuple[str, str, str]:
    """Split into release with its pre-release (2.15.0-rc1 is 2.15.0rc1), post-release and local label."""
    public, _, label = version.lower().partition("+")
    public = re.sub(r"[-_.]?(a|b|rc|dev|post)[-_.]?(?=\d)", r"\1", public)
    release, _, post = public.partition("post")
    return release, post, label


def _major(version: str) -> str:
    return version.partition(".")[0]


def _missing_model(manifest: Facts) -> Iterator[Facts]:
    model = manifest.get("model") or {}
    if model.get("unread") in (NO_FILE, NO_OBJECT):
        message = "There is no model where this manifest says that it lies"
        yield _disagreement("model", message, model_uri=model["uri"], environment=model["unread"])


def _builds(manifest: Facts) -> Iterator[Facts]:
    """Find builds of TensorFlow that were installed over each other."""
    versions = {normal_name(item["name"]): item.get("version") or "" for item in manifest.get("distributions") or []}
    builds = {name: version for name, version in versions.items() if TENSORFLOW.fullmatch(name)}
    if "tensorflow" in builds:
        builds = {name: version for name, version in builds.items() if name not in SHIMS}
    if len(builds) > 1:
        message = "%s lie over each other: files are those of whichever was installed last" % " and ".join(builds)
        yield _disagreement("tensorflow builds", message, **builds)


def _cuda(manifest: Facts) -> Iterator[Facts]:
    """Compare the loaded CUDA and cuDNN with those that the framework was built for."""
    framework, components = manifest.get("framework") or {}, (manifest.get("native") or {}).get("components") or []
    for name in ("cuda", "cudnn"):
        used = [item["version"] for item in components if item["name"] == name and item["loaded"]]
        built = framework.get(name)
        if built and used and _major(built) not in map(_major, used):
            message = "%s was built for %s %s, but the process loaded %s" % (framework["name"], name, built, used[0])
            yield _disagreement("%s version" % name, message, framework=built, environment=used[0])


def _backend(manifest: Facts) -> Iterator[Facts]:
    """Compare the backend that Keras 3 has to use with the framework and the model."""
    backend = (manifest.get("variables") or {}).get("KERAS_BACKEND")
    framework = (manifest.get("framework") or {}).get("name")
    if backend not in BACKENDS or _major(_installed_versions(manifest).get("keras", "0")) in ("0", "1", "2"):
        return
    if framework in BACKENDS and framework != backend:
        message = "KERAS_BACKEND says %s, but the framework of this run is %s" % (backend, framework)
        yield _disagreement("keras backend", message, KERAS_BACKEND=backend, framework=framework)
    wrote = ((manifest.get("model") or {}).get("details") or {}).get("backend")
    if wrote in BACKENDS and wrote != backend:
        message = "The model was written by Keras on %s, but KERAS_BACKEND says %s" % (wrote, backend)
        yield _disagreement("keras backend", message, model=wrote, KERAS_BACKEND=backend)


def _changed_files(manifest: Facts) -> Iterator[Facts]:
    """List the distributions whose files were changed after the installation."""
    for item in manifest.get("distributions") or []:
        count = item.get("changed_files") or 0
        if count:
            message = "Installed files of %s were changed: no index has what ran" % item["name"]
            values = {"RECORD": item.get("version") or "unknown", "environment": "%d files differ" % count}
            yield _disagreement("files of %s" % item["name"], message, **values)
