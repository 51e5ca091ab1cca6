"""What each rule is about, by its name: those between two sides, and those about images, stamps and files."""

from collections.abc import Mapping

from envbuild.verify.rules.catalogue import CATALOGUE

TITLES: Mapping[str, str] = {rule.id: rule.title for rule in CATALOGUE} | {
    "artifact-stamp": "a model that still is the one that was stamped",
    "artifact-copies": "copies of manifest and lock that are those of the record",
    "artifact-files": "the model's files as the run saved them, or as they were stamped",
    "context-base": "a Dockerfile on the base of its lock",
    "context-python": "a Dockerfile with the Python of its lock",
    "context-dockerfile": "one image, whichever of the context's Dockerfiles is built",
    "context-requirements": "requirements.txt with the pins and hashes of the lock",
    "context-files": "wheels with the hashes of the lock",
    "image-registry": "an image in a registry that the policy lists",
    "digest-gone": "a stamped image that its registry still has",
    "shared-layers": "a serving image that begins with training's layers, or has the same files",
    "shared-package": "each package of training in serving, file by file",
    "shared-files": "each file of training's Python in serving",
    "shared-variant": "one variant for training and serving",
    "shared-slim": "a serving image without what only training uses",
    "slim-proof": "predictions of a slim image as they were recorded",
    "shared-system": "the system's packages of training in serving",
    "shared-added": "what serving adds to training",
    "base": "an image on the base that it names",
    "environment": "an image's environment id, which is its lock's",
    "layers": "the lock's layers and no other",
    "config": "an image's config, which base and lock give",
    "manifest": "an image's manifest, which base and lock give",
    "stack": "the framework and variables that the run leads to",
    "loader": "every CUDA library that the framework opens",
    "layer": "each layer as the wheels give it",
    "layers made anew": "all layers as the wheels give them",
    "manifest made anew": "the manifest as the wheels give it",
    "blobs": "a layout's layers with the bytes of their digests",
    "tag-moved": "a tag that still names the stamped image",
    "disagreement": "a record of the run that does not contradict itself",
    "package-modified": "packages whose files are what their wheels brought",
    "golden": "predictions as they were recorded",
    "golden-run": "a model that runs where it is served",
    "golden-sample": "a recorded sample of predictions",
    "signed": "an image that a key has signed",
}
"""Policies may name these and no others; docs/rules.md says more of the catalogue's, docs/verify.md has the others."""
