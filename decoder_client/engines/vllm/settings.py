"""How vLLM is told what to do: variables DRESD_* of the environment, or `additional_config={"dresd": {...}}`.

Both say the same under names that differ in spelling only (`deadline_ms`, DRESD_DEADLINE_MS); what is in
`additional_config` counts more. Certificates and tokens are named by DRESD_RETRIEVER_* as for every decoder. Knows
names and numbers, neither vLLM nor a service.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields

from decoder_client.errors import SettingError
from decoder_client.retriever_config import RetrieverConfig
from decoder_client.retriever_errors import RetrieverError

_SECTION = "dresd"
_SWITCHES = {"1": True, "true": True, "0": False, "false": False}
_LAST_PORT = 65535


@dataclass(frozen=True, slots=True)
class ProposerSettings:
    """What a vLLM drafts with. Checks itself: SettingError names the setting.

    Attributes:
        retriever: the service, like "HOST:PORT"; "" drafts from each text alone.
        collection: the one of its datastores to ask; "" is its default one.
        deadline_ms: the longest wait for it in a step; no answer by then is no retrieved draft.
        neighbors: nearest entries asked for, for each request; 0 for none.
        sparse_neighbors: entries with the longest matching left context asked for; 0 for none.
        adapter: name of the LoRA adapter that the datastore was built with; "" is the model without one. Requests with
            another one draft from their own text.
        allow_other_weights: take a datastore of other weights too; else it is refused where they can be compared.
        adaptive: draft as many tokens as pay for themselves here, and none while none do; False for as many as vLLM
            was told each time, whatever that costs.
        metrics_port: where to show our numbers to Prometheus; 0 for nowhere but in vLLM's own, see docs/vllm.md.
    """

    retriever: str = ""
    collection: str = ""
    deadline_ms: float = 50.0
    neighbors: int = 32
    sparse_neighbors: int = 10
    adapter: str = ""
    allow_other_weights: bool = False
    adaptive: bool = True
    metrics_port: int = 0

    def __post_init__(self) -> None:
        for name in ("neighbors", "sparse_neighbors"):
            if getattr(self, name) < 0:
                raise SettingError(f"{name} must be 0 or more, not {getattr(self, name)}. 0 asks for none.")
        if not 0 <= self.metrics_port <= _LAST_PORT:
            raise SettingError(f"metrics_port must be a port from 1 to {_LAST_PORT}, or 0, not {self.metrics_port}.")
        if not 0.0 < self.deadline_ms < float("inf"):
            raise SettingError(f"deadline_ms must be above 0, not {self.deadline_ms}. Give milliseconds, like 50.")
        if self.retriever:
            self.retriever_config()

    @property
    def asks(self) -> bool:
        """Whether there is a service to ask, and something to ask for."""
        return bool(self.retriever) and self.neighbors + self.sparse_neighbors > 0

    def retriever_config(self) -> RetrieverConfig:
        """How the service is reached.

        Raises:
            SettingError: the address, the collection, or a variable DRESD_RETRIEVER_* makes no sense.
        """
        try:
            return RetrieverConfig(
                address=self.retriever,
                collection=self.collection,
                deadline_ms=self.deadline_ms,
                require_same_weights=not self.allow_other_weights,
            )
        except RetrieverError as error:
            raise SettingError(str(error)) from error

    @classmethod
    def read(cls, environment: Mapping[str, str] | None, additional: object) -> ProposerSettings:
        """What environment and configuration say.

        Args:
            environment: None is the process's own.
            additional: vLLM's `additional_config`; its part "dresd" counts.

        Raises:
            SettingError: a value makes no sense; names it.
        """
        said: dict[str, str | int | float | bool] = {}
        variables = os.environ if environment is None else environment
        kinds = {field.name: type(field.default) for field in fields(cls)}
        for name, kind in kinds.items():
            variable = f"DRESD_{name.upper()}"
            if variables.get(variable):
                said[name] = _parsed(variable, variables[variable], kind)
        for name, value in _section(additional).items():
            if name not in kinds:
                raise SettingError(
                    f"additional_config has {_SECTION}.{name}, which is no setting. There are {', '.join(kinds)}."
                )
            said[name] = _parsed(f"{_SECTION}.{name}", value, kinds[name])
        return cls(**said)  # type: ignore[arg-type]  # each value was made of its field's own kind


def _section(additional: object) -> Mapping[str, object]:
    section = additional.get(_SECTION, {}) if isinstance(additional, Mapping) else {}
    if not isinstance(section, Mapping):
        raise SettingError(f'additional_config must hold {{"{_SECTION}": {{...}}}}, not {section!r}.')
    return section


def _parsed(name: str, value: object, kind: type) -> str | int | float | bool:
    """A value of that kind, from a text or from JSON."""
    text = str(value).strip()
    if kind is bool:
        if text.lower() not in _SWITCHES:
            raise SettingError(f"{name} must be 1 or 0, not {value!r}.")
        return _SWITCHES[text.lower()]
    if kind is str:
        return text
    try:
        return int(text) if kind is int else float(text)
    except ValueError as error:
        raise SettingError(f"{name} must be a {'whole ' if kind is int else ''}number, not {value!r}.") from error
