"""An order from the manifest to the stamped model: the stages one after the other; what is printed is the caller's."""
