"""The whole record: all facts, put together in the order of the schema, by a call or by a Keras callback."""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import time
from contextlib import contextmanager
from typing import Any, Iterable, Iterator, Sequence

from envbuild.capture.accelerator import accelerator_facts
from envbuild.capture.checkout import LARGEST_PATCH, code_facts
from envbuild.capture.conda import conda_facts
from envbuild.capture.contract import contract_facts
from envbuild.capture.disagreements import find_disagreements, tell_disagreements
from envbuild.capture.distributions import find_distributions
from envbuild.capture.files import Facts, manifest_text, present, say
from envbuild.capture.frameworks import find_frameworks, numerics_facts, used_framework
from envbuild.capture.gcs import check_out, write_out
from envbuild.capture.golden import golden_facts
from envbuild.capture.host import cpu_facts, host_facts, platform_facts, python_facts
from envbuild.capture.integrity import installation_facts
from envbuild.capture.model import model_facts
from envbuild.capture.native import native_facts
from envbuild.capture.options import check_lists
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
    return manifest


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
    notes = _load_modules(load)
    distributions = find_distributions(patch)
    installation = installation_facts(distributions, deep)
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


def _load_modules(names: Iterable[str]) -> list[str]:
    """Import modules; return a sentence for each that failed, printed to stderr too. ValueError for invalid names."""
    modules, failures = list(names), []
    for name in modules:
        if not MODULE.fullmatch(name):
            raise ValueError("load: %r is not the name of a module" % name)
    for name in modules:
        try:
            with _kept_folder(), _stdout_to_stderr():
                importlib.import_module(name)
        except (Exception, SystemExit) as error:
            reason = " ".join(scrub("%s: %s" % (type(error).__name__, error)).split())
            failures.append("%s could not be loaded: %s" % (name, reason))
    for sentence in failures:
        say("warning: %s" % sentence)
    return failures


@contextmanager
def _kept_folder() -> Iterator[None]:
    """Return to the working folder afterwards, which the paths of all options are relative to."""
    try:
        folder = os.getcwd()
    except OSError:
        folder = None
    try:
        yield
    finally:
        if folder is not None and os.path.isdir(folder):
            os.chdir(folder)


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
