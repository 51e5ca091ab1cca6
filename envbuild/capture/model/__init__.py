"""The trained model, read from its own files without the framework that wrote it."""
