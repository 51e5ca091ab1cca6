"""The golden check: a recorded sample run in an image or by an interpreter, and compared within its tolerance."""
