"""Small valid inputs for each target, from which fuzzing starts."""

import json
from importlib import resources

_EXAMPLES = json.loads(resources.files("envbuild.manifest").joinpath("examples.json").read_text("utf-8"))
_BUILD_INFO = (
    "import collections\nbuild_info = collections.OrderedDict([('cuda_version', '12.2'), ('is_cuda_build', True)])\n"
)
_SECRETS = "https://user:pw@host/x --api-key=abc 'Authorization: Bearer x.y' ghp_0123456789abcdef0123 password: x"
SEEDS: dict[str, list[bytes]] = {
    "manifest": [json.dumps(example).encode() for example in _EXAMPLES],
    "redact": [_SECRETS.encode()],
    "build_info": [_BUILD_INFO.encode()],
}


def seeds(name: str) -> list[bytes]:
    """Return the seeds of a target."""
    return SEEDS[name]
