"""Facts of one manifest that do not fit together."""

from __future__ import annotations

import re
from typing import Iterator

from envbuild.capture.files import Facts, normal_name, say
from envbuild.capture.frameworks import TENSORFLOW
from envbuild.capture.places import NO_FILE, NO_OBJECT

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
