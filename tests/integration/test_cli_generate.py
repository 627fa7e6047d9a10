"""`dresd-decoder generate` answers on stdout, complains in one sentence on stderr; its exit code says how it went."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from decoder_client.cli import main
from decoder_client.generation import SpeculativeDecoder
from tests.support.models import save_tiny_model

PROMPT = "abcabcabcab"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model("qwen3", tmp_path_factory.mktemp("models") / "a model")


def run(model: Path | str, *arguments: str, prompt: str = PROMPT) -> int:
    return main(["generate", "--model", str(model), "--prompt", prompt, "--max-new-tokens", "24", *arguments])


@pytest.fixture(scope="module")
def text(model: Path) -> str:
    return SpeculativeDecoder.from_pretrained(model).generate(PROMPT, max_new_tokens=24).text


@pytest.mark.parametrize("options", [[], ["--nodes", "0"], ["--nodes", "3"], ["--stream"]])
def test_the_answer_is_printed(model: Path, text: str, options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(model, *options) == 0
    assert capsys.readouterr().out == text + "\n"


@pytest.mark.parametrize("length", [1, 2, 5])
@pytest.mark.parametrize("start", [0, 3, 9])
def test_a_stream_ends_where_the_answer_ends(
    model: Path, text: str, start: int, length: int, capsys: pytest.CaptureFixture[str]
) -> None:
    stop = text[start : start + length]
    options = ["--stop", "never", "--stop", stop]
    assert run(model, *options) == 0
    printed = capsys.readouterr().out
    assert printed == text[: text.index(stop)] + "\n"
    assert run(model, *options, "--stream") == 0
    assert capsys.readouterr().out == printed


def test_help_tells_the_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["generate", "--help"])
    # Each option with a value says what it is without one.
    entries = re.split(r"\n  (?=--)", capsys.readouterr().out)[1:]
    valued = [entry for entry in entries if re.match(r"--[\w-]+ [A-Z{]", entry)]
    silent = [entry.split()[0] for entry in valued if "default" not in entry]
    assert silent == ["--model", "--prompt", "--stop"]


def test_json_holds_text_tokens_and_stats(model: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(model, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["text"] == text
    assert len(printed["tokens"]) == printed["stats"]["tokens"] == 24
    assert printed["finish_reason"] == "length"
    assert printed["stats"]["tokens_per_forward"] >= 1.0


def test_stats_go_to_stderr(model: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(model, "--stats") == 0
    captured = capsys.readouterr()
    assert captured.out == text + "\n"
    assert "tokens per forward" in captured.err


def test_sampling_options_reach_the_decoder(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--temperature", "0.9", "--top-k", "9", "--top-p", "0.8", "--repetition-penalty", "1.1", "--seed", "4"]
    assert run(model, *options, "--chat", "--stop", "zzz") == 0
    expected = SpeculativeDecoder.from_pretrained(model).generate(
        PROMPT, chat=True, max_new_tokens=24, temperature=0.9, top_k=9, top_p=0.8, repetition_penalty=1.1, seed=4
    )
    assert capsys.readouterr().out == expected.text + "\n"


def test_a_service_that_is_down_is_warned_about_in_one_line(
    model: Path, text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(model, "--retriever", f"unix:{tmp_path}/nobody") == 0
    captured = capsys.readouterr()
    assert captured.out == text + "\n"
    [warning] = [line for line in captured.err.splitlines() if line.startswith("warning: ")]
    assert "without retrieved drafts" in warning


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"model": "/no/such/model"}, "no model folder '/no/such/model'"),
        ({"prompt": ""}, "The prompt is empty"),
        ({"prompt": "x" * 300}, "300 tokens"),
        ({"options": ["--device", "abacus"]}, "Devices here: cpu"),
    ],
)
def test_failures_are_one_sentence_and_exit_code_1(
    model: Path, arguments: dict[str, object], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = arguments.get("options", [])
    assert isinstance(options, list)
    assert run(str(arguments.get("model", model)), *options, prompt=str(arguments.get("prompt", PROMPT))) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    [error] = [line for line in captured.err.splitlines() if line.startswith("error: ")]
    assert sentence in error


def test_a_prompt_that_is_no_text_is_bad_usage(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(model, prompt="caf\udce9") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    [error] = [line for line in captured.err.splitlines() if line.startswith("error: ")]
    assert "not text in this terminal's encoding" in error


@pytest.mark.parametrize("options", [["--json", "--stream"], ["--unknown"]])
def test_wrong_usage_is_exit_code_2(model: Path, options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        run(model, *options)
    assert raised.value.code == 2
    assert options[0] in capsys.readouterr().err
