"""The differences of two images, file by file and setting by setting, and of two manifests, models or locks."""
