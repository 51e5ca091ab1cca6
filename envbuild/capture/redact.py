"""Redaction: secrets are cut out of texts, commands and patches before they are recorded.

Every pattern takes time in proportion to the text, also for hostile texts: what repeats without a bound cannot fail
afterwards, or starts only where no earlier start has read.
"""

from __future__ import annotations

import base64
import re
from typing import Iterator, NamedTuple, Sequence
from urllib.parse import quote, unquote

REDACTED = "[redacted]"
LAYERS = 3
"""How often a text may have been percent-encoded."""
SAMPLE = 128
"""Characters of a value that decide whether it is a secret."""
LONGEST_QUOTED = 1 << 16
LONGEST_LINE = 1 << 8

START = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrtbf])|(?<=\\u00[0-9a-f]{2}))"
"""Where a word starts, also in JSON, whose line ends are letters after a backslash."""
SHAPES = re.compile(
    r"""
    -{4,5}[ ]?BEGIN\ [^-]{1,80}-{4,5} (?s:.*?) (?: -{4,5}[ ]?END\ [^-]{1,80}-{4,5} | \Z )
    | """
    + START
    + r"""(?:
        eyJ[\w+/=-]{8,}(?:\.[\w+/=-]*)*      # a JSON object in base64: JWT, and the tokens of Docker and Neptune
      | LS0tLS1CRUdJT[\w+/=]{16,}              # PEM in base64
      | gh[pousr]_[\w.-]{16,} | github_pat_\w{16,} | ATATT3[\w=-]{16,} | ATBB[A-Za-z0-9]{16,}
      | gl(?:pat|ptt|dt|rt|rtr|cbt|ft|imt|agent|soat|ffct|oas|wt)-[\w.-]{16,}
      | (?:hf|npm|api_org|gsk|r8|KGAT|ntn|lin_api)_[A-Za-z0-9]{16,} | dckr_[a-z]{3}_[\w-]{16,} | pypi-Ag[\w-]{16,}
      | sk-(?:proj|svcacct|admin|ant|or|lf)-[\w-]{16,} | sk-(?=[A-Za-z_-]{0,60}\d)[\w-]{16,} | sk-[A-Za-z0-9]{16,}
      | (?:pplx|xai)-[A-Za-z0-9]{16,} | nvapi-[\w-]{16,} | figd_[\w-]{16,} | lsv2_[a-z]{2}_\w{16,}
      | wandb_v\d_\w{16,} | (?:local|pul)-[0-9a-f]{40} | key-[0-9a-f]{32} | SK[0-9a-f]{32}
      | xox[a-z](?:\.xox[a-z])?-[\w-]{10,} | xapp-[\w-]{10,} | (?<=hooks\.slack\.com/)(?:services|workflows)/[\w/]{16,}
      | \d{8,10}:AA[\w-]{32,} | (?<=/api/webhooks/)\d{8,20}/[\w-]{16,}
      | (?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}
      | AIza[\w-]{16,} | ya29\.[\w.-]{16,} | GOCSPX-[\w-]{16,} | AQ\.[\w-]{30,} | (?<![/.:_-])(?:1//|4/0)[\w-]{20,}
      | [sr]k_(?:live|test)_[A-Za-z0-9]{10,} | whsec_[\w+/=]{16,} | SG\.[\w-]{10,}\.[\w-]{10,}
      | dapi[A-Za-z0-9]{24,} | d(?:kea|ose)[0-9a-f]{32} | do[oprt]_v1_\w{16,} | hv[sbr]\.[\w-]{16,}
      | gl(?:sa|c)_[\w=+/]{16,} | shp(?:at|ca|pa|ss)_\w{16,} | AGE-SECRET-KEY-1\w{16,} | [\w~.]{3}\dQ~[\w~.-]{24,}
    )
    """,
    re.VERBOSE,
)
"""Secrets by their form alone, a little wider than the issuers publish it, since forms grow."""

HEADER = re.compile(
    START
    + r"""((?i:(?:proxy-|x-)?authori[sz]ation|(?:set-)?cookie)(?:\\*["'])?[ \t]{0,8}[:=]"""
    + r"""[ \t]{0,8}(?:\\*["'])?)[^"'\\\r\n]+"""
)
SCHEME = re.compile(START + r"""((?i:bearer|basic))([ \t]{1,8})([^\s"',;\\]+)""")
CONDA = re.compile(
    r"(https?:\\?/\\?/[^\s/]{1,255}(?:/[^\s/]{1,99}){0,3}?/t\\?/)(?![a-z]{1,14}(?:-[a-z]{1,14})+(?![\w%-]))[\w%-]{8,}(?=[/\\]|\Z)"
)
"""The token of a private channel, https://host/t/TOKEN/channel; words with dashes are the address of a forum."""

AUTHORITY = re.compile(r":\\?/\\?/")
AUTHORITY_END = re.compile(r"""[/?#"'<>\\]|\Z""")
HOST = re.compile(r"(?:\[[\w:.%]*\]|[^:\[\]]*)(?::\d{0,5})?[\W_]?")
NO_SCHEME = re.compile(
    r"""(["'(\[{]{0,4}(?:-{0,2}[A-Za-z_][\w.-]*=["']?)?)(?:[^/]*@(?!sha\d{3}:)(?=[\w.-]+:)"""
    r"""|[\w.+%-]+:(?!\\?/|\d{1,5}(?:/|\Z))\S*@(?!sha\d{3}:)(?=[\w.-]+(?:[:/"')\]},;]|\Z)))"""
)
"""`user@host:path` as scp has it and `user:password@host` as proxies do, but no `image:tag@sha256:...`."""

PIECE = re.compile(r"(?:[^?&;\\]|\\(?![nrt]))+")
"""Of a word: a parameter of a URL, a line in JSON."""

TYPE = (
    r"(?:typing\.|t\.)?(?:str|bytes|string|String|Any|Text|SecretStr|Final|(?:Optional|Union|Annotated|Final|ClassVar"
    r"|[Ll]ist|[Dd]ict|[Tt]uple)\[[\w., |\[]{1,64}\]{0,4})(?:[ ]?\|[ ]?None)?"
)
"""Type annotations of secrets in programs."""
OPEN = r"""(?:[bfruBFRU]{1,2}(?=\\*["']))?(?P<open>(?P<quote>\\*["'])(?:(?P=quote){2})?)?"""
NAMED = re.compile(
    r"""(?<![\w.-])(?:(?<=\\)(?:u00[0-9a-f]{2}|[nrtbf]))?"""
    r"""(?:(?P<name>[\w.-]+)(?:\\*["'])?\]?[ \t]{0,8}"""
    r"""(?:(?:=>|:=|==|:[ \t]{0,8}""" + TYPE + r"""[ \t]{0,8}=(?!=)|[=:])\s{0,8}|>)"""
    r"""|(?P<flag>-{1,2}[A-Za-z][\w.-]*)(?:\\*["']\s{0,8},\s{0,8}|[ \t]{1,8})(?=[^\s-])"""
    r"""|(?P<word>passw(?:or)?d)[ \t]{1,8}(?=[^\s-]))""" + OPEN
)
"""`name=value`, `"name": "value"`, `name: str = "value"`, `--name value`, and netrc's `password value`."""
ITEM = re.compile(
    r"""(?<![A-Za-z0-9])(?:name|key)(?:\\*["'])?\s{0,8}[:=]\s{0,8}(?:\\*["'])?(?P<name>[\w.-]{1,200})(?:\\*["'])?"""
    r"""(?:[\s,+-]|\\[nrt]){1,99}(?:\\*["'])?value(?:\\*["'])?\s{0,8}[:=]\s{0,8}""" + OPEN
)
"""`{"name": "NAME", "value": "value"}`, as Kubernetes has variables."""
PASSWORD_OPTION = re.compile(
    START + r"""(?:(?:sshpass|mysql\w{0,10}|mariadb|mongo\w{0,10}|htpasswd|snowsql|twine|login)(?![\w.-])"""
    r"""[^\n;&|]{0,200}?(?<![\w-])-p|redis-cli(?![\w.-])[^\n;&|]{0,200}?(?<![\w-])-a)"""
    r"""(?:\\*["']\s{0,8},\s{0,8}|=|[ \t]{1,8})?(?=[^\s-])""" + OPEN
)
"""`docker login -p value`, `mysql -pvalue`, `redis-cli -a value`: elsewhere `-p` is a port, a path or a process."""
LOGIN_KEY = re.compile(
    START + r"(?:wandb|vault)[ \t]{1,8}login(?:[ \t]{1,8}-[\w=:/.-]{1,200}){0,4}[ \t]{1,8}(?=[^\s-])" + OPEN
)
"""`wandb login value`."""
UNSAFE = re.compile(r"[^\w.=:/@%+;&|-]")
CONFIG_VALUE = re.compile(
    START
    + r"config(?:ure)?(?:[ \t]{1,8}(?:set|-[\w-]{1,40})){1,4}[ \t]{1,8}(?P<name>[^\s=]{1,200})[ \t]{1,8}(?=[^\s-])"
    + OPEN
)
"""`aws configure set name value`, and so do git, npm, pip and poetry."""
BLOCK_SCALAR = re.compile(
    r"(?<![\w.-])(?P<name>[\w.-]{1,200})[\"']?:[ \t]{0,8}[|>][-+\d]{0,2}[ \t]{0,8}(?P<newline>\\n|\n)"
)
"""A text of several lines in YAML (section 8.1, block scalars)."""
PARAMETER = re.compile(
    r"""(?i)([?&](?:code|[a-z]{0,9}s(?:ess(?:ion)?)?_?id)=)(?!\d{0,2}(?![^\s&#"'<>\\]))[^\s&#"'<>\\]+"""
)
"""Parameters of an address that sign in: OAuth's code, a session."""
JWK = re.compile(r"""(\\*["'](?:d[pq]?|p|qi?|k)\\*["']\s{0,8}:\s{0,8}\\*["'])[\w-]{16,}""")
"""The private members of a key in JSON (RFC 7518, section 6)."""
BARE_VALUE = re.compile(
    r"""(?:[^\s"'`,;&\\]|\\(?!["'])|["'`](?![\s,;:)\]}]|\Z)|[,;&](?!\s|\Z|[\w.-]{1,64}["']?\s{0,8}[=:]))*"""
)
QUOTE = re.compile(r"""(\\*)(["'])""")

WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[^A-Za-z0-9]+")
HINT = re.compile(r"(?i)pass|pwd?|secret|cred|auth|otp|jwt|sig|key|token|pat(?![a-z])|sas|cookie|bearer|basic")
"""A part of every secret's name, to skip most texts fast."""
CERTAIN = re.compile(
    r"passw|passphrase|passcode|secret|credential|authtoken|(?:^|_)(?:creds?|pass|pwd?|auth|authorization|bearer|otp|totp|jwt|sig)$|(?:^|_)(?:cookies?|pat|sas)$"
    r"|(?:api|access|private|account|auth|shared|signing|encryption|master|storage|subscription|licen[cs]e|ssh|service"
    r"|deploy|session|admin|app|client|consumer|kaggle|wandb)_?keys?(?:_id|_?\d+)?$"
)
"""Names of secrets, their words joined by `_`."""
DESCRIBING = re.compile(
    r"_(?:file|path|dir|folder|type|mode|method|format|length|size|count|limit|ttl|expiry|expires(?:_in|_at)?|policy|ur[il])$"
)
"""Names of properties of a secret."""
TOKEN = re.compile(r"token(?!i[sz])")
OF_TEXT = re.compile(
    r"(?:^|_)(?:pad|eos|bos|unk|sep|cls|mask|special|stop|start|end|max|min|num|n|vocab|image|input|output|prompt)_tokens?"
    r"|tokens?_(?:ids?|len|budget|dim|index|embed\w*|level|class\w*|labels?|mask|pos\w*|dropout)$"
)
"""The tokens of language models."""
MANY = re.compile(r"(?:^|_)tokens$")
PERHAPS = re.compile(r"(?:^|_)(?:keys?|signature|pat|sas|pass|pwd|auth)(?:_|$)")
HARMLESS = re.compile(r"(?i)\d{0,2}|true|false|yes|no|on|off|none|null|\[redacted\]?")
NUMBER = re.compile(r"(?i)[-+]?\d{1,12}(?:\.\d{0,12})?(?:e[-+]?\d{1,4})?")
CALL = re.compile(r"[A-Za-z_][\w.]*[(\[]")
RANDOM = re.compile(
    r"[0-9a-fA-F]{20,}|(?=[^0-9]*[0-9])(?=[^A-Z]*[A-Z])(?=[^a-z]*[a-z])[\w+/=%-]{16,}|(?=[a-zA-Z]*[0-9])[a-zA-Z0-9]{24,}"
)
OF_CODE = re.compile(TYPE + r"""\)?:?|(?:[A-Za-z_][\w.]*)?(?:[(\[{]{1,3}|[(\[{]{0,3}["']\[redacted\]?["']?)""")
"""A value in a program that is not the secret itself: a type, or a call without arguments."""
FLAG = re.compile(r"-{1,2}[A-Za-z][\w.-]*")
SWITCH = re.compile(r"-{1,2}(?:use|no|with|without|enable|disable|require|skip)[-_]")
ASSIGNMENT = re.compile(r"([\w.-]+)(=|:\s{0,8})(.+)", re.DOTALL)
LOGIN = re.compile(
    r"""(?<![\w-])((?:-u|--user|--proxy-user)(?:\\*["']\s{0,8},\s{0,8}|[ \t=]\s{0,8}|(?<=-u))(?:\\*["'])?"""
    r"""[^\s:/"'\\@=]{1,64}:)(?!\d+(?!\S))[^\s"'\\]+"""
)
WITH_PASSWORD = re.compile(r"(://)[^/\s:]*:[^/]*@")
"""An address with a password, as the manifest's reader refuses it."""
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def scrub(text: str, layers: int = LAYERS) -> str:
    """Cut what looks like a secret: user and password of URLs, tokens, private keys, `password=...`."""
    if "@" in text:
        text = re.sub(r"\S+", lambda match: _without_user(match.group()), text)
    # Before SHAPES, which would cut a secret with %2F in half.
    if "%" in text and layers:
        text = re.sub(r"\S+", lambda match: _without_encoded(match.group(), layers), text)
    text = LOGIN.sub(r"\1" + REDACTED, text)
    text = PARAMETER.sub(r"\1" + REDACTED, CONDA.sub(r"\1" + REDACTED, SHAPES.sub(REDACTED, text)))
    if "kty" in text:
        text = JWK.sub(r"\1" + REDACTED, text)
    for pattern in (PASSWORD_OPTION, LOGIN_KEY, CONFIG_VALUE):
        text = _without_named(text, pattern)
    if HINT.search(text):
        # Before HEADER, which cuts the rest of its line, names of other secrets included.
        text = _without_named(_without_named(_without_blocks(text), ITEM), NAMED)
        text = SCHEME.sub(_without_credentials, HEADER.sub(r"\1" + REDACTED, text))
    return text


def scrub_line(text: str) -> str:
    """Scrub a text to one line with escaped control characters, valid as an address too."""
    return WITH_PASSWORD.sub(r"\1", _escape_controls(scrub(text)))


def scrub_file_name(name: str) -> str:
    """Scrub the name of a file; one that loses a secret gets a mark, so it never equals another file's name."""
    scrubbed = scrub_line(name)
    return scrubbed if scrubbed == _escape_controls(name) or REDACTED in scrubbed else scrubbed + REDACTED


def _escape_controls(text: str) -> str:
    return CONTROL.sub(lambda match: ascii(match.group())[1:-1], text)


def scrub_command(words: Sequence[str]) -> list[str]:
    """Scrub the words of a command; any word after `--password` is cut."""
    texts = [str(word) for word in words]
    # One line of a shell with the same words.
    line, cuts = " ".join(UNSAFE.sub("_", text) for text in texts), {}
    for pattern in (PASSWORD_OPTION, LOGIN_KEY, CONFIG_VALUE):
        for start, _ in _named_values(line, pattern):
            number = line.count(" ", 0, start)
            cuts[number] = start - (line.rfind(" ", 0, start) + 1)
    pairs = enumerate(zip(["", *texts], texts))  # noqa: B905 - no `strict` before 3.10
    return [
        text[: cuts[number]] + REDACTED if number in cuts else _scrub_word(before, text)
        for number, (before, text) in pairs
    ]


def hides_secret(name: str, value: str, sure: bool = False) -> bool:
    """Tell by its name whether a value is a secret; `sure` includes names such as `key`, which often are harmless."""
    plain = plain_name(name)
    value = value.strip("\"'")
    if HARMLESS.fullmatch(value) or DESCRIBING.search(plain) or (plain in ("pwd", "oldpwd") and value[:1] == "/"):
        return False
    if CERTAIN.search(plain):
        return True
    if NUMBER.fullmatch(value):
        return False
    if TOKEN.search(plain) and not OF_TEXT.search(plain) and not MANY.search(plain):
        return not CALL.match(value)
    named = TOKEN.search(plain) or PERHAPS.search(plain)
    return bool(named) and (sure or name.isupper() or bool(RANDOM.fullmatch(value)))


def plain_name(name: str) -> str:
    """Return the words of a name in lower case, joined by `_`: `apiKey` and `API-KEY` are `api_key`."""
    return "_".join(part for part in WORDS.split(name[-SAMPLE:]) if part).lower()


def _without_encoded(word: str, layers: int) -> str:
    decoded = unquote(word)
    clean = scrub(decoded, layers - 1) if decoded != word else decoded
    # Line ends stay encoded; punctuation is readable.
    return word if clean == decoded else quote(clean, safe="!\"#$%&'()*+,-./:;<=>?@[]^_`{|}~")


def _without_blocks(text: str) -> str:
    """Cut the block scalars whose keys name secrets: the lines that follow, as far as they are indented deeper."""
    parts, done = [], 0
    for match in BLOCK_SCALAR.finditer(text):
        (start, end), newline = match.span(), re.escape(match.group("newline"))
        line = text[max(0, start - LONGEST_LINE) : start].rpartition(match.group("newline"))[2]
        indent = line[: len(line) - len(line.lstrip(" \t"))]
        deeper = rf"(?:{indent}[ \t](?:(?!{newline})[^\n])*(?:{newline}|\Z)|[ \t]*{newline})+"
        block = re.compile(deeper).match(text, end)
        if start >= done and block and hides_secret(match.group("name"), block.group().strip()):
            parts += [text[done:end], indent, "  ", REDACTED, *re.findall(rf"{newline}\Z", block.group())]
            done = block.end()
    return "".join(parts) + text[done:]


def _without_credentials(match: re.Match[str]) -> str:
    """Cut the value of `Bearer` and `Basic`, unless they are words of a sentence."""
    scheme, space, value = match.groups()
    if scheme.lower() == "bearer":
        secret = not re.fullmatch(r"[A-Za-z]{1,15}[.:)]?", value)
    else:
        try:
            # `user:password` in base64 (RFC 7617).
            altchars = b"-_" if re.search("[-_]", value) else None
            secret = b":" in base64.b64decode(value.rstrip("=") + "==", altchars=altchars)
        except ValueError:
            secret = False
    return scheme + space + REDACTED if secret else match.group()


def _without_user(word: str) -> str:
    """Cut user and password of every URL in a word, also where the password has a raw slash."""
    parts, done, last = [], 0, word.rfind("@")
    for scheme in AUTHORITY.finditer(word):
        start = scheme.end()
        end = _user_end(word, start, last) if done <= start <= last else -1
        if end >= 0:
            parts.append(word[done:start])
            done = end + 1
    if parts or last < 0:
        return "".join(parts) + word[done:]
    whole = _without_leading_user(word)
    return PIECE.sub(lambda piece: _without_leading_user(piece.group()), word) if whole == word else whole


def _without_leading_user(text: str) -> str:
    match = NO_SCHEME.match(text)
    return match.group(1) + text[match.end() :] if match else text


def _user_end(word: str, start: int, last: int) -> int:
    """Return the position of the `@` after user and password, or -1."""
    match = AUTHORITY_END.search(word, start)
    end = match.start() if match else len(word)
    at, authority = word.rfind("@", start, end), word[start:end]
    if at >= 0 or ":" not in authority:
        return at
    if not all(HOST.fullmatch(host) for host in authority.split(",")):
        return last
    slash = word.find("/", end)
    return word.rfind("@", end, slash if slash >= 0 else len(word)) if word[end : end + 1] in ("?", "#") else -1


def _without_named(text: str, pattern: re.Pattern[str]) -> str:
    parts, done = [], 0
    for start, stop in _named_values(text, pattern):
        parts += [text[done:start], REDACTED]
        done = stop
    return "".join(parts) + text[done:]


def _named_values(text: str, pattern: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    """Yield start and end of values whose names are those of secrets."""
    stop = 0
    for match in pattern.finditer(text):
        if match.start() >= stop and _is_named_secret(text, match):
            stop = _value_end(text, match.end(), match.group("open"))
            if stop > match.end():
                yield match.end(), stop


def _is_named_secret(text: str, match: re.Match[str]) -> bool:
    start, name = match.end(), next(filter(None, map(match.groupdict().get, ("name", "flag"))), None)
    if name and not HINT.search(name):
        return False
    sample = text[start : start + SAMPLE]
    value = sample[: _value_end(sample, 0, match.group("open"))]
    if not name:
        sure = match.re is PASSWORD_OPTION or (
            match.re is NAMED and "login" in text[max(0, match.start() - SAMPLE) : start]
        )
        return not HARMLESS.fullmatch(value) and (sure or not re.fullmatch(r"[a-z]{1,12}\W?", value))
    if not match.group("open") and OF_CODE.fullmatch(value):
        return False
    return hides_secret(name, value, text[max(0, match.start() - 1) : match.start()] in ("?", "&"))


def _value_end(text: str, start: int, opening: str | None) -> int:
    """Return the end of a value after its opening quote, with the backslashes before it, or without a quote."""
    if not opening:
        match = BARE_VALUE.match(text, start)
        return start + len(match.group().rstrip(")]}")) if match else start
    if opening.count(opening[-1]) == 3:
        end = text.find(opening, start, start + LONGEST_QUOTED)
        return end if end >= 0 else min(len(text), start + LONGEST_QUOTED)
    depth = len(opening) - 1
    for quoted in QUOTE.finditer(text, start, start + LONGEST_QUOTED):
        more = len(quoted.group(1)) - depth
        if quoted.group(2) == opening[-1] and more >= 0 and more % (2 * depth + 2) == 0:
            return quoted.end() - len(opening)
    line_end = text.find("\n", start)
    return line_end if line_end >= 0 else len(text)


def _scrub_word(before: str, word: str) -> str:
    assigned = ASSIGNMENT.fullmatch(word)
    if assigned and hides_secret(assigned.group(1), assigned.group(3)):
        return assigned.group(1) + assigned.group(2) + REDACTED
    option = FLAG.fullmatch(before) or before.lower() in ("password", "passwd", "secret")
    value = option and not re.match(r"--|-.\Z", word) and not SWITCH.match(before)
    if value and hides_secret(before, word):
        return REDACTED
    if before in ("-u", "--user", "--proxy-user") and re.fullmatch(r"[^\s:/]+:(?!\d+$).+", word):
        return word.partition(":")[0] + ":" + REDACTED
    return scrub(word)


TOKENS = re.compile(
    r"""(?P<quote>(?:(?<!\w)|(?<=(?<!\w)[rbfuRBFU])|(?<=(?<!\w)[rbfuRBFU]{2}))(?:\"""|\'\'\'|["'`]))"""
    r"""(?P<content>(?:\\.|(?!(?P=quote))[^\\]|\\\Z)*)(?P<end>(?P=quote)|\Z)"""
    r"""|(?P<word>[\w.-]+)|(?P<bracket>[(\[{}\])])"""
)
"""Literals, names, and brackets of a line; an apostrophe within a word opens no literal."""
PART_OF_NAME = re.compile(r"(?:^|_)(?:auth|pass|pwd|bearer|cookie|pat|sas)(?:_|$)")
CONTINUES = re.compile(r"""(?:\\|=|^\s*(?:-\s)?["']?[\w.-]+["']?:)\s*\Z""")
MARKS = re.compile(r"\W{0,2}")
"""Separators, in calls of join and split."""
BLOCK = re.compile(r":\s*[|>][+-]?\d?[+-]?\s*\Z")
"""YAML's texts of several lines."""
SETTING = re.compile(r"\s*(?:ENV|ARG|LABEL|setenv)[ \t]+([\w.-]+)[ \t]+(?=\S)")
"""A variable as a Dockerfile sets it without a `=`."""


class LineState(NamedTuple):
    """The state of one side of a patch after a line."""

    depth: int = 0
    """Open brackets since a secret's name."""
    quote: str = ""
    """The quote of a secret's open literal."""
    indent: int = -1
    """The indentation of a key whose lines below are its secret."""
    armed: bool = False
    """Whether the next line goes on after a secret's name."""


def scrub_patch(text: str) -> str:
    """Scrub a patch as git prints it.

    A program gives a secret in more ways than a text: as a default, in a list, on the next line. So after the name of a
    secret every literal is cut up to the end of the statement, secret or not; a digest of the patch is kept as well.
    """
    states, lines = {"-": LineState(), "+": LineState()}, []
    for line in text.split("\n"):
        if line.startswith(("@@", "diff --git ")):
            states = dict.fromkeys(states, LineState())
        sign, body = line[:1], line[1:]
        for side in [sign] if sign in states else list(states):
            body, states[side] = _scrub_code_line(body, states[side])
        lines.append(sign + body)
    return scrub("\n".join(lines))


def _scrub_code_line(line: str, state: LineState) -> tuple[str, LineState]:
    """Cut a line's secrets; return it with the state after it."""
    indent = len(line) - len(line.lstrip())
    if state.indent >= 0 and (indent > state.indent or not line.strip()):
        return line[:indent] + REDACTED if line.strip() else line, state
    if state.quote:
        end = line.find(state.quote)
        if end < 0:
            return REDACTED, state
        tail, after = _scrub_code_line(line[end + len(state.quote) :], LineState(state.depth, armed=True))
        return REDACTED + state.quote + tail, after
    armed = state.armed or state.depth > 0
    if not armed and not HINT.search(line):
        return line, LineState()
    setting = SETTING.match(line)
    if setting and names_secret(setting.group(1)):
        return line[: setting.end()] + REDACTED, LineState()
    return _without_literals(line, state.depth, armed, indent)


def _without_literals(line: str, depth: int, armed: bool, indent: int) -> tuple[str, LineState]:
    parts, done, quote, last = [], 0, "", False
    for match in TOKENS.finditer(line):
        content, last = match.group("content"), False
        if match.group("bracket"):
            depth = max(0, depth + (1 if match.group() in "([{" else -1)) if armed else 0
        elif content is not None and armed:
            quote = match.group("quote") if not match.group("end") else ""
            if quote or not (MARKS.fullmatch(content) or HARMLESS.fullmatch(content)):
                parts += [line[done : match.start("content")], REDACTED]
                done = match.end("content")
        if names_secret(match.group("word") or content or "", line[match.end() : match.end() + 9]):
            armed = last = True
    line = "".join(parts) + line[done:]
    block = indent if armed and BLOCK.search(line) else -1
    goes_on = bool(CONTINUES.search(line)) or (last and line.rstrip().endswith(","))
    return line, LineState(depth, quote, block, armed and goes_on)


def names_secret(name: str, after: str = "=") -> bool:
    """Tell whether a name in a program is that of a secret, so that a text beside it is one."""
    if not HINT.search(name) or (name == "pass" and not re.match(r"\s*[:=]", after)):
        return False
    plain = plain_name(name)
    if " " in name or DESCRIBING.search(plain):
        return False
    by_token = TOKEN.search(plain) and not OF_TEXT.search(plain)
    return bool(CERTAIN.search(plain) or by_token or PART_OF_NAME.search(plain))
