"""A model behind HTTP: Vertex AI's contract, and KServe's protocols v1 and v2."""
