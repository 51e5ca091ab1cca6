"""The stamp: which images belong to a model, written on the model itself."""
