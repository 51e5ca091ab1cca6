"""The words of the OCI image and distribution specifications, as values."""
