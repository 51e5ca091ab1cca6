"""One target under libFuzzer, with envbuild's own modules instrumented: `python -m tests.fuzz.child TARGET OPTION...`."""

import sys

import atheris


def main() -> None:
    with atheris.instrument_imports(include=["envbuild"]):
        from tests.fuzz.targets import checked
    name = sys.argv.pop(1)
    atheris.Setup(sys.argv, lambda data: checked(name, data))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
