"""Whether environments agree: images, models, manifests, locks, build contexts and this machine."""
