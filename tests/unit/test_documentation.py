"""The documentation names what there is: files, headings, targets, commands and their options."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from decoder_client.cli import COMMANDS as DECODER
from decoder_client.engines.vllm.versions import TESTED
from dresd.command_line import Command
from retriever_service.cli import COMMANDS as RETRIEVER

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(page for place in ("docs", "k8s", "examples") for page in (ROOT / place).rglob("*.md"))]
)
COMMANDS = {"dresd-retriever": RETRIEVER, "dresd-decoder": DECODER}
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")


def options_of(command: Command) -> set[str]:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return {option for action in parser._actions for option in action.option_strings if option.startswith("--")}


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ +(.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def command_lines(text: str) -> Iterator[tuple[str, str, str]]:
    """Program, command and what follows it, of code blocks (where a line that is indented goes on) and inline code."""
    blocks = re.findall(r"^ *```\w*\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
    joined = (re.sub(r"\\\n|\n +(?=[\[-])", " ", block) for block in blocks)
    lines = [line for block in joined for line in block.splitlines()]
    lines += re.findall(r"`([^`\n]+)`", re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL))
    for line in lines:
        for part in re.split(r"&&|;|(?<=\s)#", line):
            found = re.search(r"(?:^|\s|bin/)(dresd-retriever|dresd-decoder) +([a-z][\w-]*)(.*)", part)
            if found is not None and not found[3].startswith(" on "):  # what a server prints
                yield found[1], found[2], found[3]


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        there = page if not path else (page.parent / path).resolve()
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_commands_and_their_options_exist(page: Path) -> None:
    for program, name, rest in command_lines(page.read_text("utf-8")):
        assert name in COMMANDS[program], f"{program} {name}"
        assert set(OPTION.findall(rest)) <= options_of(COMMANDS[program][name]) | {"--help"}, f"{program} {name}{rest}"


def test_command_lines_are_found_where_they_are() -> None:
    block = "```\nx/bin/dresd-decoder two --b \\\n  --c && dresd-retriever three\n  [--d]  # --e\n```"
    text = f"`dresd-retriever one --a`\n{block}\n`dresd-retriever ready on HOST:PORT`"
    assert list(command_lines(text)) == [
        ("dresd-decoder", "two", " --b    --c "),
        ("dresd-retriever", "three", " [--d]  "),
        ("dresd-retriever", "one", " --a"),
    ]


@pytest.mark.parametrize(("program", "name"), [(program, name) for program in COMMANDS for name in COMMANDS[program]])
def test_every_option_is_documented(program: str, name: str) -> None:
    text = "\n".join(page.read_text("utf-8") for page in PAGES)
    missing = options_of(COMMANDS[program][name]) - set(OPTION.findall(text))
    assert missing <= {"--help"}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_targets_and_programs_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    assert set(re.findall(r"[`\n]make ([a-z][a-z-]*)", text)) <= targets
    for script in re.findall(r"(?:scripts|examples|benchmarks|k8s)/[\w/.-]*\w\.(?:py|yaml|md|sh)", text):
        assert (ROOT / script).exists(), script
    for test in re.findall(r"`(test_\w+)`", text):
        assert any((ROOT / "tests").rglob(f"{test}.py")), test
    for module in re.findall(r"python3? -m ((?:benchmarks|k8s|scripts|decoder_client|retriever_service)[\w.]*)", text):
        path = ROOT.joinpath(*module.split("."))
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module


def test_every_vllm_that_is_installed_is_a_tested_one() -> None:
    """With another one, vLLM does not start with our proposer."""
    texts = [page.read_text("utf-8") for page in (*PAGES, ROOT / "Makefile", ROOT / "Dockerfile")]
    named = {version for text in texts for version in re.findall(r"vllm(?:-cpu==|==|-openai:v)(\d[\d.]*\d)", text)}
    assert named
    assert named <= set(TESTED)
