"""Manifest: what a training run really had, its schema, and its reader."""

from envbuild.manifest.reader import MAX_MANIFEST, manifest_dict, read_manifest

__all__ = ["MAX_MANIFEST", "manifest_dict", "read_manifest"]
