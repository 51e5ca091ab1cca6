"""Images to and from a registry (OCI distribution-spec), and Artifact Registry's own API."""
