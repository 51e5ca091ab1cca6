"""Save small models with PyTorch in every format it has, and say which version did: `save_torch.py FOLDER`."""

# The frameworks are installed only where this runs.
# mypy: ignore-errors

import json
import sys
from pathlib import Path

import torch


class Double(torch.nn.Module):
    def forward(self, x):
        return 2 * x


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    program = torch.export.export(Double(), (torch.ones(3),), strict=False)
    torch.export.save(program, str(folder / "model.pt2"))
    weights = {"weight": torch.ones(2, 3)}
    torch.save(weights, folder / "weights.pt")
    torch.save(weights, folder / "legacy.pth", _use_new_zipfile_serialization=False)
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 3)), str(folder / "script.pt"))
    versions = {"torch": torch.__version__, "git_version": torch.version.git_version}
    (folder / "versions.json").write_text(json.dumps(versions))


main()
