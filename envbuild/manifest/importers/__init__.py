"""Other tools' records of an environment, read as manifests: what they do not say stays unknown."""
