"""Deflate streams of several blocks, and contents that compressors give codes of their own."""

import base64
import random
import zlib

from envbuild.oci import gzip
from envbuild.oci.deflate import LastBlockError, continued

FORGED = base64.b85decode(
    "?9c%T000OBu!H?G-"
    "x>;Age3p~000000002+Upo>200000061&`0096000030{{R30|Nj600RR600096000030{{R30|Nj600RR600096000030{{R30|Nj600RR60009"
    "6000030{{R30|Nj600RR600096000030{{R30|Nj600RR6000960?EL|dBuSDaNdf=>000000000000000000000000000000000000000000000"
    "0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000006"
    "ej%d1UqM0RRF30002MBLDyZ000000000003ZMW00000000000000000000000000000000000000000000000000000000000000000000000000"
    "00000000000000000000000000000000000000000000000000000000000000000$J9uCL0ib{Y!}m^{=W*Wq?yjpZ@ZP)Eon_DI9^C&A009600"
    "0030{{R30|Nj600RR600096000030|Ly$&kR(ZxBuQ2e00000000000000000000000000000000000000000000000000000000000000000000"
    "0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000Kl%Oc_bkK000000000000RI3"
    "000000000001yEHuGTL$u4=6AuZk{hFQu=-"
    "EnO{CEHy6;u86IKE}X68tX3^uuV1ePE(k5YED)~hEj+GxEugPwuOcicEpe_Jts<>TFH5YvulBE7ykzqiEnjJuwO?(x`f-"
    "`?szZgN9Qs#dikg3I`d>?u`~M}7S9bp*)9cUw^66iLeEH;GDH2*Lx~uj7`ci%9r3=aSuYUeTz`uxl+4BYF*TAov{!7#Kp}$IhE%3GYe;MN<|F!-"
    "yd0D=4cYWlq>lUv6a`Y9&O2J>Pzm{?t|F0y!bn#-~i%i#-D#J3)#iZBE|AnWQpLDRlz`U~h*9c#sRKDdldGw{qY9{}`00#j0{{"
)
"""A stream with a final header inside of what codes stand for: without its bit the end is swallowed as stored bytes."""
LETTERS = [letter for number in range(256) for letter in [number * 167 % 256] * (900 // (number + 3))]
"""Some occur often and some seldom, as in programs, so that their codes have many lengths and headers are long."""


def text(seed, words, letters=LETTERS):
    """Words of many lengths, of which some come again."""
    dice = random.Random(seed)
    known = [bytes(dice.choices(letters, k=dice.randrange(1, 12))) for _ in range(words // 2 + 1)]
    return b"".join(dice.choices(known, k=words))


def deflated(*contents, level=6, memory=8, way=zlib.Z_DEFAULT_STRATEGY, flush=zlib.Z_FULL_FLUSH):
    """A stream in which each content begins a block, and what lies before the last one."""
    compressor = zlib.compressobj(level, zlib.DEFLATED, -15, memory, way)
    before = b"".join(compressor.compress(content) + compressor.flush(flush) for content in contents[:-1])
    return before + compressor.compress(contents[-1]) + compressor.flush(), before


def opened(stream):
    """The stream without its end; None if its last block is not found."""
    try:
        return b"".join(blocks for blocks, _ in continued(memoryview(stream)))
    except LastBlockError:
        return None


def place(stream):
    """The bit where its last block begins, as it is cleared; None if it is not found."""
    found = opened(stream)
    if found is None:
        return None
    changed = int.from_bytes(stream, "little") ^ int.from_bytes(found[: len(stream)], "little")
    return (changed & -changed).bit_length() - 1


def follows(opened, content):
    """Whether blocks of each kind can follow."""
    blocks = (deflated(b"more")[0], gzip.deflate_runs(b"more"), b"".join(gzip.stored(b"more")))
    return {zlib.decompress(opened + block, -15) for block in blocks} == {content + b"more"}
