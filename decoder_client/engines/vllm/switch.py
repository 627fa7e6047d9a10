"""Whether a step drafts and how much, by what drafting gains and costs in this engine at this number of requests.

A node budget (see `drafting.budget`) for passes that many requests share: their likeliest draft tokens compete for
places, whoever they belong to. With R tokens a second in the long run, the best number of draft tokens maximises
expected tokens - R * time. What was really gained decides, for about this number of requests, whether to go on (see
`pays`), so that an engine under load is as fast as without drafts. Passes without drafts are measured now and then,
because the comparison is with them. Knows numbers only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from decoder_client.engines.vllm.pass_times import PassTimes
from decoder_client.engines.vllm.pays import Pays

_FIRST_PLAIN = 3
"""Passes without drafts before the first with drafts, for every number of requests."""
_REFRESH, _DOUBTFUL_REFRESH = 50, 8
"""Steps with drafts until the next pass without; more often where it is doubtful that drafts pay."""
_MEMORY = 64
"""Steps that the rate of tokens is one of."""
_TRIAL = 1.0
"""On trial, drafts may make a pass longer by this share of its time without."""


class _Rate:
    """Tokens a second, mostly of the latest steps."""

    def __init__(self) -> None:
        self._tokens = self._seconds = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        decay = 1.0 - 1.0 / _MEMORY
        self._tokens = decay * self._tokens + tokens
        self._seconds = decay * self._seconds + seconds

    @property
    def value(self) -> float:
        return self._tokens / self._seconds if self._seconds else 0.0


class BatchSwitch:
    """The node budget of an engine that serves a changing number of requests. Asked and told once a step."""

    def __init__(self, *, adaptive: bool = True) -> None:
        """`adaptive` False drafts always, and as much as may be."""
        self._adaptive = adaptive
        self._times = PassTimes()
        self._judged: dict[int, Pays] = {}
        self._rates: dict[int, _Rate] = {}
        self._since_plain: dict[int, int] = {}
        self._requests = 1
        self._is_open = False
        self._draft_s = 0.0

    # What the engine's side says

    def ended(self, requests: int, extra: int, tokens: int, seconds: float) -> None:
        """A pass that only decoded: of `requests` requests and `extra` draft tokens, in `seconds` without drafting; it
        brought `tokens` tokens. The draft before it took what `drafted` was told, if there was one.
        """
        self._times.record(requests, extra, seconds)
        draft_s, self._draft_s = self._draft_s, 0.0
        at = _size(requests)
        self._rates.setdefault(at, _Rate()).add(tokens, seconds + draft_s)
        plain = self._times.plain(requests)
        if plain is not None and (draft_s or extra):
            gain_s = (tokens - requests) * plain / requests
            self._pays(requests).record(gain_s, seconds - plain + draft_s, plain)
        elif plain is not None:
            self._pays(requests).passed(seconds)

    def enter(self, requests: int) -> bool:
        """A step of `requests` requests is to be drafted for, or not: says which."""
        self._requests = requests
        self._is_open = self._decide(requests)
        return self._is_open

    def drafted(self, seconds: float) -> None:
        """What the drafts of this step took to make."""
        self._draft_s = seconds

    def _decide(self, requests: int) -> bool:
        if not self._adaptive:
            return True
        if self._times.plain_count(requests) < _FIRST_PLAIN:
            return False
        at = _size(requests)
        if not self._pays(requests).opens():
            return False
        refresh = _DOUBTFUL_REFRESH if self._pays(requests).is_doubtful else _REFRESH
        self._since_plain[at] = self._since_plain.get(at, 0) + 1
        if self._since_plain[at] >= refresh:
            self._since_plain[at] = 0
        return self._since_plain[at] != 0

    def _pays(self, requests: int) -> Pays:
        at = _size(requests)
        if at not in self._judged:
            # More requests leave less room for drafts: where fewer do not pay, more are not tried at once.
            is_on = all(pays.is_on for size, pays in self._judged.items() if size < at)
            self._judged[at] = Pays(requests, is_on=is_on)
        return self._judged[at]

    # What the drafter asks, see `NodeBudget`

    @property
    def token_s(self) -> float | None:
        """See `NodeBudget`."""
        plain = self._times.plain(self._requests)
        return None if plain is None else plain / self._requests

    @property
    def floor(self) -> float:
        """See `NodeBudget`: a draft token that gains less than half of the cheapest's cost is not looked at."""
        if not self._can_compare:
            return 1e-3
        steps = np.diff(self._times.seconds(self._requests, 16 * self._requests))
        cheapest = float(steps.reshape(16, -1).sum(axis=1).min()) / self._requests
        return min(max(1e-3, 0.5 * cheapest * self._rate), 0.5)

    def begin(self) -> None:
        """See `NodeBudget`: a new request is no news for an engine that serves many."""

    def opens(self) -> bool:
        """See `NodeBudget`."""
        return self._is_open

    def choose(self, probabilities: Sequence[NDArray[np.float64]]) -> list[int]:
        """See `NodeBudget`: the likeliest draft tokens of all requests, as long as one more pays."""
        counts = [len(one) for one in probabilities]
        if not self._can_compare or sum(counts) == 0:
            return counts
        owners = np.repeat(np.arange(len(counts)), counts)
        order = np.argsort(-np.concatenate(probabilities), kind="stable")
        gains = np.concatenate([[0.0], np.cumsum(np.concatenate(probabilities)[order])])
        times = self._times.seconds(self._requests, len(owners))
        worth = gains - times * self._rate
        worth[self._most_extra + 1 :] = -np.inf
        if self._pays(self._requests).on_trial:
            worth[times > (1.0 + _TRIAL) * times[0]] = -np.inf
        best = int(worth.argmax())
        chosen: list[int] = np.bincount(owners[order[:best]], minlength=len(counts)).tolist()
        return chosen

    def observe(self, _tokens: int, _draft_s: float) -> None:
        """See `NodeBudget`: `ended` says it for the whole step."""

    @property
    def _most_extra(self) -> int:
        """Draft tokens of a pass: twice as many as were ever measured, or one a request, lest the first be too dear."""
        return max(self._requests, 2 * self._times.most_extra(self._requests))

    @property
    def _can_compare(self) -> bool:
        return self._adaptive and self._times.plain(self._requests) is not None

    @property
    def _rate(self) -> float:
        """Tokens a second: at least what passes without drafts bring."""
        plain = self._times.plain(self._requests)
        rate = self._rates.get(_size(self._requests))
        return max(0.0 if rate is None else rate.value, self._requests / plain if plain else 0.0)


def _size(requests: int) -> int:
    """Numbers of requests that are judged together: 1, 2, 3 to 4, 5 to 8, ..."""
    return (requests - 1).bit_length()
