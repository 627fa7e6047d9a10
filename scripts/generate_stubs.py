"""Regenerates the Python modules of the wire contract from its .proto files.

Run by `make proto`; `--check` writes nothing and fails when a generated file is stale.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

PROTO_ROOT = Path(__file__).resolve().parent.parent / "proto"


def generate(out: Path) -> list[Path]:
    """Writes the modules of every .proto under `out` and returns their paths relative to it."""
    # protoc finds its mypy plugins on the PATH, beside the interpreter they were installed with.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    sources = sorted(str(path.relative_to(PROTO_ROOT)) for path in PROTO_ROOT.glob("dresd/v*/*.proto"))
    arguments = [
        "protoc",
        f"--proto_path={PROTO_ROOT}",
        f"--python_out={out}",
        f"--grpc_python_out={out}",
        f"--mypy_out=quiet:{out}",
        f"--mypy_grpc_out=quiet:{out}",
        *sources,
    ]
    if protoc.main(arguments) != 0:
        raise SystemExit("protoc failed; see its message above")
    return sorted(path.relative_to(out) for path in out.rglob("*") if path.is_file())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if a generated module is stale")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch)
        stale = []
        for relative in generate(out):
            fresh, target = (out / relative).read_bytes(), PROTO_ROOT / relative
            if target.exists() and target.read_bytes() == fresh:
                continue
            stale.append(str(target))
            if not arguments.check:
                target.write_bytes(fresh)
    if arguments.check and stale:
        print(f"stale generated modules: {', '.join(stale)}; run `make proto`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
