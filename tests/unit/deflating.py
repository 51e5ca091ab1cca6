"""Contents that compressors give codes of their own."""

import random

LETTERS = [letter for number in range(256) for letter in [number * 167 % 256] * (900 // (number + 3))]
"""Some occur often and some seldom, as in programs, so that their codes have many lengths and headers are long."""


def text(seed, words, letters=LETTERS):
    """Words of many lengths, of which some come again."""
    dice = random.Random(seed)
    known = [bytes(dice.choices(letters, k=dice.randrange(1, 12))) for _ in range(words // 2 + 1)]
    return b"".join(dice.choices(known, k=words))
