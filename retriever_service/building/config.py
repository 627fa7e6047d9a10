"""What a build is asked to do, checked before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from retriever_service.building.errors import BuildError
from retriever_service.datastore import CODECS


@dataclass(frozen=True, slots=True)
class BuildConfig:
    """One build. Raises `BuildError` where a value makes no sense.

    Attributes:
        model: folder or repository name of the target model.
        corpus: files to read.
        out: the datastore's folder; must not exist, or be empty.
        dims: numbers in a key.
        codec: how keys are quantised, one of `CODECS`.
        partitions: parts by next token.
        continuation_length: tokens kept after an entry's next token.
        prompt_keys: also store positions of the prompts, not only of the answers.
        respond: let the target itself answer the prompts, and store those answers.
        max_new_tokens: length of such an answer, at most.
        temperature: of such an answer; 0 is greedy.
        seed: of sampling answers and of choosing what the reducer is fitted on.
        answers_out: file that receives the answers, readable as a corpus again.
        fit_tokens: hidden states the reducer is fitted on (all, if the corpus has fewer).
        workers: copies of the model; None is one a GPU, or one for every 4 cores without a GPU.
        ray_address: of a running Ray cluster; None starts Ray inside this process.
        command: as typed, for the manifest.
    """

    model: str
    corpus: tuple[Path, ...]
    out: Path
    dims: int = 64
    codec: str = "sq8"
    partitions: int = 1
    continuation_length: int = 16
    prompt_keys: bool = False
    respond: bool = False
    max_new_tokens: int = 128
    temperature: float = 0.0
    seed: int = 0
    answers_out: Path | None = None
    fit_tokens: int = 32_768
    workers: int | None = None
    ray_address: str | None = None
    command: str = ""

    def __post_init__(self) -> None:
        if not self.corpus:
            raise BuildError("No corpus is named. Give at least one file to --corpus.")
        at_least_one = ["dims", "partitions", "continuation_length", "max_new_tokens"]
        for name in at_least_one + (["workers"] if self.workers is not None else []):
            if getattr(self, name) < 1:
                raise BuildError(f"{name.replace('_', ' ')} is {getattr(self, name)}, but must be at least 1.")
        if self.codec not in CODECS:
            raise BuildError(f"There is no codec {self.codec!r}. Choose one of {', '.join(CODECS)}.")
        if not self.temperature >= 0:
            raise BuildError(f"The temperature is {self.temperature}, but must be 0 (greedy) or greater.")
        if not 0 <= self.seed < 2**32:
            raise BuildError(f"The seed is {self.seed}, but must lie in 0..{2**32 - 1}.")
        if self.fit_tokens <= self.dims:
            raise BuildError(f"{self.fit_tokens} tokens are too few to fit keys of {self.dims} dimensions.")
        if self.answers_out is not None and not self.respond:
            raise BuildError("Answers are written only where the model answers. Add --respond, or drop --answers-out.")
