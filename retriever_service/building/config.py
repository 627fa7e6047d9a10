"""What a build is asked to do, checked before anything is loaded."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from decoder_client.settings import SETTINGS
from retriever_service.building.engines import ENGINES
from retriever_service.building.errors import BuildError
from retriever_service.datastore import CODECS
from retriever_service.echo import quoted

# Of whole numbers, by attribute: the option, the least and the most. Beyond these nothing is gained, and memory or
# patience lost.
_BOUNDS = {
    "dims": ("--dims", 1, 65_536),
    "partitions": ("--partitions", 1, 4096),
    "continuation_length": ("--continuation", 1, 256),
    "max_new_tokens": ("--max-new-tokens", 1, 1_000_000),
    "seed": ("--seed", 0, 2**32 - 1),
    "fit_tokens": ("--fit-tokens", 2, 2**31 - 1),
    "table_tokens": ("--table-tokens", 0, 2**31 - 1),
    "answers_per_prompt": ("--answers-per-prompt", 1, 1024),
    "workers": ("--workers", 1, 1024),
    "threads": ("--threads", 1, 1024),
}
_HIGHEST_PORT = 65_535
_RAY_ADDRESS = re.compile(r"auto|(ray://)?(\[[0-9A-Fa-f:]+\]|[^\s:/\[\]]+):(?P<port>[0-9]{1,5})")


class ConfigError(BuildError):
    """Options that make no sense, whatever the corpus and the model."""


@dataclass(frozen=True, slots=True)
class BuildConfig:
    """One build. Raises `ConfigError` where a value makes no sense.

    Attributes:
        model: folder or repository name of the target model.
        corpus: files to read: paths, patterns, or URLs.
        out: the datastore's folder; must not exist, or be empty.
        dims: numbers in a key.
        codec: how keys are quantised, one of `CODECS`.
        partitions: parts by next token.
        continuation_length: tokens kept after an entry's next token.
        prompt_keys: also store positions of the prompts, not only of the answers.
        skip_bad: leave out records that are no records, as damaged ones always are.
        respond: let the target itself answer the prompts, and store those answers.
        engine: what computes answers and keys, one of `ENGINES`.
        answers_per_prompt: how many are asked for.
        max_new_tokens: length of such an answer, at most.
        temperature: of such an answer; 0 is greedy.
        seed: of sampling answers and of choosing what the reducer is fitted on.
        answers_out: file that receives the answers, readable as a corpus again.
        fit_tokens: hidden states the reducer is fitted on (all, if the corpus has fewer).
        reducer_of: a datastore of the same model and as many dims whose reducer makes the keys; None fits one.
        table_tokens: positions whose likely next tokens go into the token table (all, if there are fewer).
        workers: copies of the model; None is one a GPU, or one for every 4 cores without a GPU.
        threads: cores of each; None shares all of them out.
        ray_address: of a running Ray cluster; None starts Ray inside this process.
        restart: begin anew where an interrupted build of the same datastore could be continued.
        command: as typed, for the manifest.
    """

    model: str
    corpus: tuple[str | Path, ...]
    out: Path
    dims: int = 64
    codec: str = "sq8"
    partitions: int = 1
    continuation_length: int = 16
    prompt_keys: bool = False
    skip_bad: bool = False
    respond: bool = False
    engine: str = "transformers"
    answers_per_prompt: int = 1
    max_new_tokens: int = 128
    temperature: float = 0.0
    seed: int = 0
    answers_out: Path | None = None
    fit_tokens: int = 32_768
    reducer_of: Path | None = None
    table_tokens: int = 1_000_000
    workers: int | None = None
    threads: int | None = None
    ray_address: str | None = None
    restart: bool = False
    command: str = ""

    def __post_init__(self) -> None:
        if not self.corpus:
            raise ConfigError("No corpus is named. Give at least one file to --corpus.")
        for name, (option, low, high) in _BOUNDS.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise ConfigError(f"{option} is {value}, but must lie in {low}..{high}.")
        if self.codec not in CODECS:
            raise ConfigError(f"There is no codec {self.codec!r}. Choose one of {', '.join(CODECS)}.")
        temperatures = SETTINGS["temperature"]
        if not temperatures.allows(self.temperature):
            raise ConfigError(f"--temperature is {self.temperature:g}, but must be {temperatures.expected}.")
        if self.engine not in ENGINES:
            raise ConfigError(f"There is no engine {self.engine!r}. Choose one of {', '.join(ENGINES)}.")
        if self.answers_per_prompt > 1 and self.temperature == 0:
            raise ConfigError("Greedy answers to one prompt are all the same. Give a --temperature, too.")
        if self.reducer_of is None and self.fit_tokens <= self.dims:
            raise ConfigError(
                f"--fit-tokens {self.fit_tokens} are too few to fit keys of {self.dims} dimensions. "
                "Give more of them, or smaller --dims."
            )
        if self.ray_address is not None and not _is_ray_address(self.ray_address):
            raise ConfigError(
                f"--ray-address is {quoted(self.ray_address)}, but must be auto, or HOST:PORT of a running Ray cluster."
            )
        if self.answers_out is not None and not self.respond:
            raise ConfigError("Answers are written only where the model answers. Add --respond, or drop --answers-out.")
        if self.answers_out is not None and self.answers_out.suffix != ".jsonl":
            # By another ending a later build would read them as something else.
            raise ConfigError(f"Answers are written as .jsonl. Name --answers-out so, not '{self.answers_out}'.")

    @property
    def corpus_names(self) -> tuple[str, ...]:
        """The corpus as it was named."""
        return tuple(map(str, self.corpus))


def _is_ray_address(text: str) -> bool:
    parts = _RAY_ADDRESS.fullmatch(text)
    return parts is not None and (parts["port"] is None or 0 < int(parts["port"]) <= _HIGHEST_PORT)
