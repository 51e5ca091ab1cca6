"""From a build request to the stamped model: the stages in their order, and the builders of images."""
