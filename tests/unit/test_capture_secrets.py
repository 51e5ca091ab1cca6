"""No secret reaches a record, whatever it is and wherever it lies."""

import base64
import json
import random
import re
import string
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, unquote

import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

from envbuild.capture.contract import contract_facts
from envbuild.capture.program import read_settings
from envbuild.capture.redact import hides_secret, scrub, scrub_command, scrub_line, scrub_patch
from envbuild.manifest.reader import read_manifest
from tests.fakes.metadata import VALUES, MetadataServer
from tests.unit.capturing import Environment

SECRET = "hunter2SuperSecretValue99"
ALNUM = string.ascii_letters + string.digits
HEX = "0123456789abcdef"


def core(alphabet: str = ALNUM, shortest: int = 20, longest: int = 40) -> st.SearchStrategy[str]:
    """Draw a secret; random, so that nothing else is equal to it, and sometimes of one sort of characters only."""
    sorts = (string.ascii_letters, string.ascii_lowercase, string.digits, alphabet)
    alphabets = [both for sort in (alphabet, *sorts) if (both := "".join(sorted(set(alphabet) & set(sort))))]

    def secret(drawn: tuple[str, int, int]) -> str:
        return "".join(random.Random(drawn[2]).choices(drawn[0], k=drawn[1]))

    return st.tuples(st.sampled_from(alphabets), st.integers(shortest, longest), st.integers(0, 2**64)).map(secret)


def like(*forms: str, **how) -> st.SearchStrategy[tuple[str, str]]:
    """Texts of one of the forms with a secret at `$`, and that secret."""
    return st.tuples(st.sampled_from(forms), core(**how)).map(lambda drawn: (drawn[0].replace("$", drawn[1]), drawn[1]))


def basic(hidden: str) -> str:
    return base64.b64encode(f"user:{hidden}".encode()).decode()


awkward = st.tuples(core(), st.text("-_.~!$&'()*+,;=:@/?#%[] \"", max_size=6)).map(
    lambda drawn: quote(drawn[0] + drawn[1], safe="")
)
KEY_BODY = ALNUM + "+/"
SHAPED = {
    "GitHub": like("ghp_$", "gho_$", "ghu_$", "ghs_$", "ghr_$", shortest=36),
    "GitHub, fine-grained": like("github_pat_$", alphabet=ALNUM + "_", shortest=40),
    "GitLab": like("glpat-$", "gldt-$", "glrt-$", alphabet=ALNUM + "-_"),
    "Hugging Face": like("hf_$", shortest=30),
    "OpenAI": like("sk-$", "sk-proj-$", "sk-svcacct-$"),
    "Anthropic": like("sk-ant-api03-$", "sk-ant-oat01-$", alphabet=ALNUM + "-_"),
    "Slack": like("xoxb-1234567890-$", "xoxp-$", "xapp-1-A0-$"),
    "AWS access key id": like(
        "AKIA$", "ASIA$", alphabet=string.ascii_uppercase + string.digits, shortest=16, longest=16
    ),
    "Google API key": like("AIza$", alphabet=ALNUM + "-_", shortest=35, longest=35),
    "Google access token": like("ya29.$", "ya29.c.$", alphabet=ALNUM + "-_"),
    "Google refresh token": like("1//0$", alphabet=ALNUM + "-_", shortest=40),
    "Google client secret": like("GOCSPX-$", alphabet=ALNUM + "-_", shortest=28, longest=28),
    "JWT": like("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.$", "eyJhbGciOiJSUzI1NiJ9.$.c2ln", alphabet=ALNUM + "-_"),
    "npm": like("npm_$", shortest=36, longest=36),
    "package index": like("pypi-AgEIcHlwaS5vcmc$", alphabet=ALNUM + "-_"),
    "Stripe": like("sk_live_$", "rk_live_$", "sk_test_$"),
    "SendGrid": like("SG.abcdefghij0123456789AB.$", "SG.$.abcdefghij0123456789AB", alphabet=ALNUM + "-_"),
    "Twilio": like("SK$", alphabet=HEX, shortest=32, longest=32),
    "Databricks": like("dapi$", "dapi$-2", alphabet=HEX, shortest=32, longest=32),
    "Docker Hub": like("dckr_pat_$", alphabet=ALNUM + "-_"),
    "Vault": like("hvs.$"),
    "private key": like(
        "-----BEGIN PRIVATE KEY-----\n$\n-----END PRIVATE KEY-----\n",
        "-----BEGIN RSA PRIVATE KEY-----\\n$\\n-----END RSA PRIVATE KEY-----\\n",
        "-----BEGIN OPENSSH PRIVATE KEY-----\r\n$",
        alphabet=KEY_BODY,
    ),
    "private key in base64": like("LS0tLS1CRUdJTiBQUklWQVRFIEtFWS0tLS0t$", alphabet=KEY_BODY),
}
"""Known by their form alone, so they may lie anywhere."""
IN_URL = {
    "user and password": awkward.map(lambda hidden: (f"https://user:{hidden}@example.com/x", hidden)),
    "token as user": awkward.map(lambda hidden: (f"git+https://{hidden}@example.com:8080/x.git", hidden)),
    "password alone": awkward.map(lambda hidden: (f"redis://:{hidden}@example.com:6379/0", hidden)),
    "password with raw marks": core().map(lambda hidden: (f"ssh://user:p/{hidden}?#@example.com/x", hidden)),
    "copy over ssh": like("$@example.com:group/project.git", "user:$@example.com:group/x.git"),
    "proxy": like("user:$@proxy.example.com:3128"),
    "channel": like("https://conda.example.com/t/$/main/linux-64/x.conda", "https://h.example.com/c/t/xx-$/main"),
    "signed by Google": like("https://s.example.com/b/o?X-Goog-Algorithm=A&X-Goog-Signature=$&x=1", alphabet=HEX),
    "signed by Amazon": like("https://b.example.com/o?X-Amz-Expires=60&X-Amz-Signature=$", alphabet=HEX),
    "signed, older": like("https://s.example.com/b/o?GoogleAccessId=a&Expires=1&Signature=$%3D&x"),
    "OAuth code": like("https://example.com/back?code=$&state=x", "https://example.com/?a=b&code=$#x"),
    "session": like(
        "https://example.com/?sid=$", "https://example.com/?a=b&JSESSIONID=$", "https://example.com/?session_id=$&x=1"
    ),
    "shared access of Azure": like("https://a.example.com/c/b?sv=2024-01-01&sig=$%3D&se=2027"),
    "token as parameter": like("https://example.com/x.whl?access_token=$", "https://example.com/?key=$#x"),
}
NAMED = {
    "header": like("Authorization: Bearer $", "authorization: token $", "Proxy-Authorization: Basic $"),
    "bearer": like("Bearer $", "bearer $"),
    "basic": core().map(lambda hidden: (f"Basic {basic(hidden)}", basic(hidden))),
    "AWS secret": like("aws_secret_access_key = $", "AWS_SECRET_ACCESS_KEY=$", alphabet=KEY_BODY, shortest=40, longest=40),
    "Azure storage": like("AccountName=x;AccountKey=$==;EndpointSuffix=y", "SharedAccessKey=$="),
    "W&B": like("WANDB_API_KEY=$", "wandb_api_key: $", alphabet=HEX, shortest=40, longest=40),
    "Kaggle": st.integers(0).map(lambda seed: "".join(random.Random(seed).choices(HEX, k=32))).map(
        lambda hidden: (f'{{"username":"u","key":"{hidden}"}}', hidden)
    ),
    "netrc": like("machine example.com login me password $", "password $"),
    "YAML": like("password: $", "client_secret: '$'", "db:\n  passwd: $\n"),
    "JSON": like('{"password": "$"}', '{"x": 1, "refreshToken":"$", "y": 2}', '{"auths":{"h":{"auth":"$"}}}'),
    "JSON in JSON": like('"{\\"private_key_id\\": \\"$\\"}"', '{\\"apiKey\\":\\"$\\"}'),
    "connection": like("Server=x;User Id=sa;Password=$;Encrypt=true", "host=x password=$ dbname=y"),
    "npmrc": like("//npm.example.com/:_authToken=$", "_auth=$"),
    "cookie": like("Cookie: session=$; x=y", "Set-Cookie: a=$"),
    "shell": like(
        "sshpass -p $ ssh h", "docker login -u me -p $ host", "podman login -p'$' h", "set -e; redis-cli -h h -a $ ping",
        "mongosh -u me -p $ db", "mysql -p$ -u me", "aws configure set aws_secret_access_key $",
        "git config --global x.secret $",
    ),
    "W&B on a command line": like("wandb login $", "wandb login --relogin --host=https://h $", alphabet=HEX, shortest=40),
    "JWK": like(
        '{"kty":"EC","crv":"P-256","x":"abc","d":"$"}', '{"kty": "RSA", "e": "AQAB", "p": "$"}', '{"k":"$","kty":"oct"}',
        alphabet=ALNUM + "-_", shortest=32, longest=60,
    ),
    "block scalar": like(
        "password: |\n  $\n  more\nnext: kept\n", "db:\n  - client_secret: >-\n      a $\n\n      b\n    user: me", "'api_key': |2\n    $",
    ),
    "bytes": like('password = b"a $ b"', 'token = rb"""$"""', '{"api_key": b"$ x"}'),
    "code": like("connect(password='$', port=1)", 'os.environ["HF_TOKEN"] = "$"'),
    "option": like("run --api-key $ --epochs 3", 'run --password "a $"', '["--auth-token", "$"]', "run --secret=$"),
}  # fmt: skip
KINDS = {**SHAPED, **IN_URL, **NAMED}
kinds = st.sampled_from(sorted(KINDS)).flatmap(lambda kind: KINDS[kind])
CONTEXTS = {
    "alone": "$",
    "in a sentence": "see $ there",
    "quoted": "'$'",
    "in lines": "a\n$\nb",
    "as an option": "--flag=$",
    "in pairs": "A=1 B=$ C=2",
}


def readings(text: str) -> Iterator[str]:
    """What a reader may make of a text: it, its percent-decoding, and what it says as JSON."""
    yield text
    yield unquote(text)
    yield text.encode("utf-8", "replace").decode("unicode_escape", "replace")


def leaks(text: str, hidden: str) -> list[str]:
    wanted = {hidden, unquote(hidden)}
    return [reading for reading in readings(text) if any(secret in reading for secret in wanted)]


@pytest.mark.parametrize("kind", sorted(KINDS))
@settings(max_examples=15)
@given(st.data())
def test_no_kind_of_secret_is_kept(kind, data):
    text, hidden = data.draw(KINDS[kind])
    for context in CONTEXTS.values() if kind in SHAPED else ["$", "a\n$\nb"]:
        whole = context.replace("$", text)
        assert leaks(scrub(whole), hidden) == []
        assert leaks(scrub(json.dumps({"x": whole})), hidden) == []
        assert leaks(scrub("https://example.com/?next=" + quote(whole, safe="")), hidden) == []
        assert leaks(scrub(quote(quote(whole, safe=""))), hidden) == []


@given(kinds)
def test_what_is_scrubbed_stays_as_it_is(drawn):
    clean = scrub(drawn[0])
    assert scrub(clean) == clean


@given(kinds | st.text().map(lambda text: (text, "")))
def test_a_scrubbed_line_is_one_line(drawn):
    line = scrub_line(drawn[0])
    assert not re.search("[\x00-\x1f\x7f-\x9f\u2028\u2029]", line)
    assert not drawn[1] or leaks(line, drawn[1]) == []


@given(st.text(":/@?#[] aA1,%\"'\\.=&-", max_size=25), st.sampled_from(["", "a://", "a://:"]))
def test_an_address_that_was_scrubbed_is_accepted_by_the_reader(text, scheme):
    assert not re.search(r"://[^/\s:]*:[^/]*@", scrub_line(scheme + text))


@given(awkward, st.sampled_from(["https", "http", "git+https", "ssh", "git+ssh", "gs"]))
def test_no_user_or_password_of_a_url_is_kept(hidden, scheme):
    forms = (f"user:{hidden}", hidden, f"{hidden}:x-oauth-basic", f":{hidden}", f"a@b:{hidden}")
    for userinfo in forms:
        assert scrub(f"{scheme}://{userinfo}@example.com:8080/x@y/z") == f"{scheme}://example.com:8080/x@y/z"
        assert hidden not in scrub(f"--flag={scheme}://{userinfo}@example.com --other")


@given(core())
def test_no_token_is_kept(hidden):
    texts = [
        f"https://user:pa/ss{hidden}@example.com/x",
        f"user:{hidden}@example.com:group/project.git",
        f"https://example.com/x.whl?X-Goog-Signature={hidden}&a=1",
        f"https://example.com/x.whl?a=1&sig={hidden}",
        f"--password={hidden}",
        f'{{"api_key": "{hidden}"}}',
        f"Authorization: Bearer {hidden}",
        f"a ghp_{hidden} b",
        f"hf_{hidden}",
        f"sk-{hidden}",
        f"AIza{hidden}",
        f"ya29.{hidden}",
        f"glpat-{hidden}",
        f"eyJhbGciOiJI.{hidden}.{hidden}",
        f"-----BEGIN PRIVATE KEY-----\n{hidden}\n-----END PRIVATE KEY-----",
        f"-----BEGIN RSA PRIVATE KEY-----\n{hidden}",
    ]
    assert [text for text in texts if hidden in scrub(text)] == []


DIGEST = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
PLAIN = f"""
gs://bucket/t/run1/model
gs://bucket/t/run-2023-01-01/model
gs://sk-models/run
https://example.com:8080/a@b/c?file=x.whl#subdirectory=y
https://forum.example.com/t/some-topic/123
file:///home/me@work/src
--xla_gpu_cuda_data_dir=/usr/local/cuda --xla_dump_to=gs://asia-bucket/dump
git@example.com/no-path
/opt/tokenizer:/usr/lib
:4096:8
localhost:8080
http://[::1]:8080/x
mongodb://h1:27017,h2:27017/db
771b50e0c1d2e3f4a5b6c7d8e9f0a1b2c3d4e5f6
commit=771b50e0c1d2e3f4a5b6c7d8e9f0a1b2c3d4e5f6
sha256:{DIGEST}
python:3.11@sha256:{DIGEST}
python@sha256:{DIGEST}
registry.example.com:5000/train:1@sha256:{DIGEST}
x @ https://example.com/x.whl#sha256={DIGEST}
git+https://example.com:8443/x.git@v1.0#egg=x
pkg @ git+https://example.com/x.git@771b50e0c1d2e3f4a5b6c7d8e9f0a1b2c3d4e5f6
123e4567-e89b-12d3-a456-426614174000
tensorflow==2.15.1+cu118
tokenizer=bert-base-uncased
TOKENIZERS_PARALLELISM=false
--keras-backend tensorflow
--max-tokens 512
--pad-token <pad> --eos-token-id 2
max_new_tokens=1024
--author me
author=someone
author: me
--key-dim 64 --num_keys 4
key=value
primary_key=id
--signature serving_default
--learning-rate 1e-3 --epochs 10 --model-dir gs://b/m
token = tokenizer.encode(x)
special_tokens={{"a": 1}}
--xla_disable_hlo_passes=fusion
TF_XLA_FLAGS=--tf_xla_auto_jit=2
/home/user/password_utils/x.py
password_file=/run/secrets/x
PWD=/home/user
hf_hub_download_cache_directory
sk-learn-compatible-estimators
global-step-something-very-long
@@ -1,2 +3,4 @@ def f(self):
Basic usage of training
bearer of news
import sys; exec('x')
50%25 done
gs://bucket/%E4%BD%A0
ssl_mode=require
use_auth=true
docker login example.com && docker run -p 8080:80 x
docker login example.com; ssh -p 2222 h
run wandb login before training
git config --global user.name someone
https://example.com/?language_code=de&barcode=4006381333931
https://example.com/?side=left&code=7
{{"kty":"EC","x":"MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4","d":"short"}}
notes: | several words
""".strip().split("\n")


@pytest.mark.parametrize("text", PLAIN)
def test_plain_values_stay_as_they_are(text):
    assert scrub(text) == text
    assert scrub_command(text.split(" ")) == text.split(" ")


@given(st.text(" .:/-_=abcxyzABC0123\n", max_size=60))
def test_texts_without_names_of_secrets_stay_as_they_are(text):
    assume(not re.search("(?i)AC[0-9a-f]|/t/", text))
    assert scrub(text) == text


@pytest.mark.parametrize(
    ("words", "clean"),
    [
        ("--api-key $", "--api-key ■"),
        ("--api-key=$", "--api-key=■"),
        ("-password $", "-password ■"),
        ("--token -$ --x 1", "--token ■ --x 1"),
        ("--hf_token $ train.py", "--hf_token ■ train.py"),
        ("--token --verbose", "--token --verbose"),
        ("--token -v x", "--token -v x"),
        ("--use-auth train.py", "--use-auth train.py"),
        ("HF_TOKEN=$ python train.py", "HF_TOKEN=■ python train.py"),
        ("-e API_KEY=$", "-e API_KEY=■"),
        ("-u user:$", "-u user:■"),
        ("--user user:$", "--user user:■"),
        ("--user 1000:1000", "--user 1000:1000"),
        ("docker login -u user -p $", "docker login -u user -p ■"),
        ("/usr/bin/sshpass -p $ ssh h", "/usr/bin/sshpass -p ■ ssh h"),
        ("serve -p 8080", "serve -p 8080"),
        ("serve -p models/x", "serve -p models/x"),
        ("wandb login 0123456789abcdef0123456789abcdef01234567", "wandb login ■"),
        ("machine h login user password $", "machine h login user password ■"),
        ("--tokens 512 --password 12345", "--tokens 512 --password ■"),
        ("--pass 1234 --auth user", "--pass ■ --auth ■"),
        ("--tokenizer $", "--tokenizer $"),
        ("--cookie $", "--cookie ■"),
        ("--pat $ --sas $", "--pat ■ --sas ■"),
        ("mysql -u root -p$", "mysql -u root -p■"),
        ("ssh -p2222 host", "ssh -p2222 host"),
        ("redis-cli -p 6379 -a $ ping", "redis-cli -p 6379 -a ■ ping"),
        ("redis-cli -a$ -n 0", "redis-cli -a■ -n 0"),
        ("mongosh --port 27017 -p $ db", "mongosh --port 27017 -p ■ db"),
        ("aws configure set aws_secret_access_key $", "aws configure set aws_secret_access_key ■"),
        ("aws configure set region eu-west-1", "aws configure set region eu-west-1"),
        ("wandb login --relogin $", "wandb login --relogin ■"),
        ("az login --service-principal -p $ --tenant t", "az login --service-principal -p ■ --tenant t"),
        ('{"name":"DB_PASSWORD","value":"$"}', '{"name":"DB_PASSWORD","value":"■"}'),
        ('[{"name":"STEPS","value":"90"}]', '[{"name":"STEPS","value":"90"}]'),
        ("--env=TOKEN=$", "--env=TOKEN=■"),
        ("--header X-Api-Key:$", "--header X-Api-Key:■"),
        ("", ""),
    ],
)
def test_of_a_command_the_word_after_a_name_is_cut(words, clean):
    cut = scrub_command(words.replace("$", SECRET).split(" "))
    assert cut == clean.replace("■", "[redacted]").replace("$", SECRET).split(" ")


def test_a_plain_word_is_a_password_only_in_a_login():
    assert scrub("machine h login me password swordfish") == "machine h login me password [redacted]"
    assert scrub("print the password hint") == "print the password hint"


@given(
    core(ALNUM + " !$%&()*+,;<>?@[]^{|}~"), st.sampled_from(["--password", "--client-secret", "-passwd", "--api_key"])
)
def test_a_word_is_cut_whole_whatever_marks_it_has(hidden, option):
    assume(not hidden.startswith("--"))
    assert scrub_command([option, hidden]) == [option, "[redacted]"]
    assert scrub_command([f"{option}={hidden}"]) == [f"{option}=[redacted]"]


@pytest.mark.parametrize(
    ("name", "value", "hidden"),
    [
        ("DB_PASSWORD", "x", True),
        ("MY_KEY", "x", True),
        ("SSH_AUTH_SOCK", "/tmp/x", True),
        ("clientSecret", "x", True),
        ("AWSSecretKey", "x", True),
        ("HFToken", "x", True),
        ("PASSWORD", "true", False),
        ("PASSWORD", "", False),
        ("MAX_TOKENS", "512", False),
        ("TOKENIZERS_PARALLELISM", "x", False),
        ("AUTHOR", "x", False),
        ("KERAS_BACKEND", "x", False),
        ("MONKEY", "x", False),
        ("PWD", "/x", False),
        ("PWD", "x", True),
        ("sort_key", "name", False),
    ],
)
def test_names_tell_what_a_value_is(name, value, hidden):
    assert hides_secret(name, value) is hidden


CODE = (
    r"""
password: str = "$"
api_key: str="$"
def f(user: str, password: str = "$", port: int = 1) -> None:
token: Optional[str] = "$"
token: str | None = '$'
secret = os.getenv("X", "$")
x = os.environ.get("DB_PASSWORD", "$")
os.environ.setdefault("API_KEY", "$")
os.environ.setdefault(⏎    "API_KEY",⏎    "$",⏎)
config.setdefault("password", "$")
setattr(o, "api_key", "$")
flags.DEFINE_string("password", "$", "for the database")
requests.get(url, auth=("user", "$"))
auth_header = "$"
tokens = {"a": "$"}
passwords = ["one", "$"]
passwords = [⏎    "one",⏎    "$",⏎]
password = "one" + "$"
password = getpass() or "$"
token = (⏎    "$"⏎)
password = \⏎    "$"
password =⏎    "$"
"password":⏎    "$"
password: |⏎  one⏎⏎  $⏎  more
password: >-⏎  one $
password=<3>$<3>
password = <3>one⏎$⏎<3>
password = b'$'
key = 1 if password == "$" else 2
ENV API_KEY $
ENV PASSWORD $
RUN curl -u user:$ https://example.com
RUN curl -uuser:$ https://example.com
RUN mysql -p$ -u root
{"name":"DB_PASSWORD","value":"$"}
""".replace("<3>", '"' * 3)
    .strip()
    .split("\n")
)


@pytest.mark.parametrize("code", CODE)
@pytest.mark.parametrize("side", ["+", "-", " "])
@settings(max_examples=5)
@given(core(string.ascii_lowercase, 10, 20))
def test_no_secret_of_a_program_is_kept_in_a_patch(code, side, hidden):
    lines = [side + line for line in code.replace("$", hidden).split("⏎")]
    between = "" if side == " " else "{})]}}'\n".format("-" if side == "+" else "+")
    text = "@@ -1 +1 @@\n" + between.join(line + "\n" for line in lines) + '@@\n+x = "kept"\n'
    clean = scrub_patch(text)
    assert hidden not in clean
    assert clean.endswith('\n+x = "kept"\n')
    assert between or scrub_patch(clean) == clean


KEPT = r"""
password: str = "■"
def f(user: str, password: str = "■") -> str:
def f(password: str) -> str:
secret_santa = compute()
token = (
special_tokens = ["<pad>", "<eos>"]
max_tokens = {"small": "512"}
password_file = "/run/secrets/x"
x = "a", "don't", 'b'
# don't set "this", and "that"
ENV MODE fast
docker run -u 1000:1000 --user 1:1 x
ssh -p2222 host
""".strip().split("\n")


def test_a_variable_as_kubernetes_has_it_is_cut():
    text = f"- name: DB_PASSWORD\n+  value: {SECRET}\n"
    assert scrub(text) == text.replace(SECRET, "[redacted]")
    assert SECRET not in scrub(json.dumps({"env": json.dumps([{"name": "DB_PASSWORD", "value": SECRET}])}))


@pytest.mark.parametrize("line", KEPT)
def test_what_is_no_secret_stays_in_a_patch(line):
    line = line.replace("■", "[redacted]")
    assert scrub_patch(f"+{line}\n") == f"+{line}\n"


ENDLESS = [
    "login ", "login -p", "redis-cli a ", "wandb login -a ", "config set ", "config set token ", "key: |\n a\n", "key: |\n\n", "?code=", '"kty" "d":"',
    "a", "aB", "@", '"', "[", "(((", "://a:x", "key=", "key=[", "_token", "sk-a-", "eyJaaaaaaaa-", "-----BEGIN X-----",
    'password="\n', '"""', "'\\", "-u a:", "mysql -p", "name: x,", "token=[", "+password = (\n", "password: Optional[", "https://a/t/", "%2525", "bearer x", 'def f(token: str = "x"): # https://example.com/a@b -p password\n',
]  # fmt: skip
LIMITED = """
import json, os, resource, sys
from envbuild.capture.redact import scrub_patch
for unit in json.load(sys.stdin):
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (2, 2))
        os._exit(not scrub_patch(unit * (25_000 // len(unit)) + "=password=x@h%41"))
    if os.waitpid(child, 0)[1]:
        print(repr(unit))
"""


def test_the_time_for_a_text_grows_as_its_length():
    # Half a second at most; what grows by the square takes eight, and the process is killed.
    command = [sys.executable, "-c", LIMITED]
    done = subprocess.run(command, input=json.dumps(ENDLESS), capture_output=True, text=True, check=True)
    assert done.stdout == ""


def planted(env: Environment, texts: dict[str, tuple[str, str]], server: MetadataServer) -> list[str]:
    """Lay every secret into everything that a capture reads; returns the words of the command line."""
    whole = [text for text, _ in texts.values()]
    shaped = [texts[kind][0] for kind in SHAPED if re.fullmatch(r"[\w.-]+", texts[kind][0])]
    urls = [texts[kind][0] for kind in IN_URL] + [f"https://u:{quote(text, safe='')}@example.com/x" for text in whole]
    plant_checkout(env, whole, urls)
    plant_distributions(env, urls, shaped)
    record = ""
    (env.folder / "model").mkdir()
    for text in shaped:
        (env.site / f"{text}.pth").write_text(f"/opt/{text}/lib\n# {text}\n")
        record += f"{text}.py,sha256=AAAA,1\n"
        (env.site / f"{text}.py").write_text("changed")
        (env.folder / "model" / f"{text}.bin").write_text("")
    env.install("changed", RECORD=record)
    plant_variables(env, whole, shaped, server)
    (env.folder / shaped[0]).mkdir()
    hidden = [core for _, core in texts.values()]
    places = [f"X{number}={url}" for number, url in enumerate(urls)]
    config = {"data": places, "requires": [*shaped, f"NAME={hidden[0]}"], "model": "model"}
    (env.folder / "config.json").write_text(json.dumps(config))
    options = ["--config", "config.json", "--patch", "--preprocessing", shaped[0]]
    options += [f"--variable={name}" for name in env.variables if name.startswith("ASKED_")] + [
        "--variable",
        "MY_API_KEY",
    ]
    named = [word for core in hidden for word in ("--api-key", core, f"--password={core}", f"TOKEN={core}")]
    return [*options, "--", "python", "train.py", *whole, *named]


def plant_checkout(env: Environment, whole: list[str], urls: list[str]) -> None:
    env.git("init", "-q")
    (env.folder / "train.py").write_text("1\n")
    env.git("add", ".")
    env.git("commit", "-qm", "\n".join(whole))
    for number, url in enumerate(reversed(urls)):
        env.git("remote", "add", f"r{number}" if number else "origin", url)
    (env.folder / "train.py").write_text("\n".join(whole))


def plant_distributions(env: Environment, urls: list[str], shaped: list[str]) -> None:
    for number, url in enumerate(urls):
        vcs = {"vcs": "git", "commit_id": "abc", "requested_revision": shaped[number % len(shaped)]}
        kinds: list[dict] = [{"vcs_info": vcs}, {"archive_info": {}}, {"dir_info": {"editable": True}}]
        kind = kinds[number % 3]
        text = json.dumps({"url": url, "subdirectory": shaped[0], **kind})
        env.install(f"d{number}", direct_url=text, INSTALLER=shaped[number % len(shaped)] + "\n")
    for number, text in enumerate(shaped):
        folder = env.install(f"c{number}", INSTALLER="conda\n")
        meta = env.prefix / "conda-meta" / f"c{number}.json"
        meta.parent.mkdir(exist_ok=True)
        package = {"name": f"c{number}", "version": "1.0", "build": text, "build_number": 0}
        url = f"https://conda.example.com/t/{text}/main/c.conda"
        files = [str((folder / "METADATA").relative_to(env.prefix))]
        meta.write_text(json.dumps({**package, "url": url, "channel": url.rpartition("/")[0], "files": files}))


def plant_variables(env: Environment, whole: list[str], shaped: list[str], server: MetadataServer) -> None:
    names = (
        "XLA_FLAGS",
        "TF_XLA_FLAGS",
        "LD_LIBRARY_PATH",
        "AIP_EXPERIMENT_NAME",
        "AIP_DATA_FORMAT",
        "CLOUD_ML_REGION",
    )
    env.variables |= dict.fromkeys(names, " ".join(whole).replace("\0", ""))
    env.variables |= {f"ASKED_{number}": text for number, text in enumerate(whole)}
    env.variables |= {"MY_API_KEY": SECRET, "UNASKED": SECRET, "AIP_TRAINING_DATA_URI": f"bq://{shaped[1]}"}
    words = [f"{name}={shaped[0]}" for name in ("x", "y")]
    pool = {
        "machineSpec": {"machineType": shaped[2]},
        "containerSpec": {"imageUri": f"https://u:{SECRET}@example.com/x", "args": words, "env": [{"value": SECRET}]},
    }
    task = {"type": shaped[3], "index": 0, "trial": shaped[4]}
    spec = {"environment": "cloud", "task": task, "job": {"workerPoolSpecs": [pool]}, "secret": SECRET}
    env.variables |= {"CLUSTER_SPEC": json.dumps(spec), "TF_CONFIG": json.dumps(spec), "ENVBUILD_IMAGE": shaped[5]}
    env.variables |= {
        "CLOUD_ML_JOB_ID": shaped[6],
        "KUBERNETES_SERVICE_HOST": "1",
        "POD_NAME": whole[0],
        "HOSTNAME": shaped[7],
    }
    env.variables |= {"POD_NAMESPACE": shaped[8], "JPY_SESSION_NAME": whole[0], "GCE_METADATA_HOST": server.address}


@settings(max_examples=3, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(st.fixed_dictionaries(KINDS), st.data())
def test_nothing_that_is_planted_anywhere_comes_out_anywhere(texts, data):
    values = {
        path: data.draw(SHAPED[kind])[0]
        for path, kind in zip(VALUES, ("GitHub", "GitLab", "Slack", "JWT"), strict=True)
    }
    with tempfile.TemporaryDirectory() as folder, MetadataServer(values) as server:
        env = Environment(Path(folder))
        words = planted(env, texts, server)
        done = env.run("--out", "manifest.json", *words)
        assert server.requests
        written = (env.folder / "manifest.json").read_text()
    read_manifest(written.encode(), "captured")
    manifest = json.loads(written)
    assert {"code", "conda", "contract", "entry", "host", "installation", "model", "variables"} <= manifest.keys()
    assert manifest["variables"]["MY_API_KEY"] == "[redacted]"
    for text in (done.stdout, done.stderr, written):
        assert SECRET not in text
        for secret in [core for _, core in texts.values()] + list(values.values()):
            assert leaks(text, secret) == []


@settings(max_examples=15, deadline=None)
@given(kinds)
def test_what_is_wrong_is_said_without_secrets(drawn):
    text, hidden = drawn
    calls = (
        lambda: contract_facts([f"a {text}"], (), ()),
        lambda: contract_facts((), (), [text]),
        lambda: read_settings(text.replace("\0", "")),
    )
    for call in calls:
        with pytest.raises(ValueError) as caught:
            call()
        assert leaks(str(caught.value), hidden) == []
