"""What files of other tools are called, for those that only look whether they are there."""

from typing import Final

MLMODEL: Final = "MLmodel"
WANDB_METADATA: Final = "wandb-metadata.json"
WANDB_REQUIREMENTS: Final = "requirements.txt"
