"""What methods draft from, opened when the first one needs it and shared by all: datastore, answers, retriever.

Knows how each is opened and what to tell a user who has not named or installed it; not how anything drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from decoder_client.drafting import CostCurve
from decoder_client.errors import DecoderError
from decoder_client.evaluation.baselines.dresd_paper import NEIGHBORS, Lookup
from decoder_client.evaluation.baselines.rest import SuffixArray
from decoder_client.evaluation.baselines.suffix_extension import NewTree, load_extension
from decoder_client.evaluation.results import StoreInfo
from decoder_client.reducer import KeyReducer
from dresd.identity import ModelIdentity, differences

if TYPE_CHECKING:
    from decoder_client.drafting.retriever import Retriever
    from retriever_service.datastore import Datastore

Ann = Literal["exact", "scann"]


class MethodError(DecoderError):
    """A method cannot be used as asked: one sentence and a hint."""


class Resources:
    """See the module. Everything is opened once, at its first use, and stays."""

    def __init__(
        self,
        identity: ModelIdentity,
        *,
        datastore: Path | None = None,
        corpus: Sequence[Path] = (),
        retriever: Retriever | None = None,
        require_same_weights: bool = True,
        ann: Ann = "exact",
        cache: Path,
        measure: Callable[[], CostCurve],
    ) -> None:
        """Nothing is opened yet.

        Args:
            identity: of the target; a datastore of another model is refused.
            datastore: folder of the store.
            corpus: files with the answers it was built from; those it names itself for none.
            retriever: connected service of the same datastore; the datastore is opened in this process without one.
            require_same_weights: refuse a datastore of other weights even if tokenizer and sizes agree.
            ann: how dresd-paper searches.
            cache: folder of what was built for the evaluation.
            measure: gives the cost curve of the device.
        """
        self.identity = identity
        self.notes: list[str] = []
        self._path = datastore
        self._corpus = tuple(corpus)
        self._retriever = retriever
        self._require_same_weights = require_same_weights
        self._ann = ann
        self._cache = cache
        self._measure = measure

    @cached_property
    def datastore(self) -> Datastore:
        """The open datastore; MethodError if none is named, it cannot be opened, or is another model's."""
        from retriever_service.datastore import Datastore, DatastoreError

        if self._path is None:
            raise MethodError("A method needs the datastore itself. Name its folder with --datastore.")
        try:
            opened = Datastore.open(self._path)
        except DatastoreError as error:
            raise MethodError(str(error)) from error
        built_with = opened.manifest.model
        same_weights = replace(self.identity, weights_fingerprint=built_with.weights_fingerprint)
        differ = differences(self.identity if self._require_same_weights else same_weights, built_with)
        if differ:
            accept = "" if differences(same_weights, built_with) else ", or accept it with --allow-other-weights"
            raise MethodError(
                f"The datastore {str(self._path)!r} is another model's; --model against datastore: "
                f"{'; '.join(differ)}. Name the datastore of this model{accept}."
            )
        return opened

    @property
    def store_info(self) -> StoreInfo | None:
        """Of the datastore; None if none is named."""
        if self._path is None:
            return None
        return StoreInfo(self.datastore.manifest.build_id, self.datastore.num_entries)

    @property
    def retriever(self) -> Retriever:
        """The service, or the datastore in its place; MethodError if there is neither."""
        return self._retriever if self._retriever is not None else self._local_retriever

    @cached_property
    def _local_retriever(self) -> Retriever:
        if self._path is None:
            raise MethodError("A method needs a retriever. Name its service with --retriever, or --datastore.")
        from decoder_client.evaluation.local_retriever import LocalRetriever

        return LocalRetriever(self.datastore)

    @cached_property
    def cost_curve(self) -> CostCurve:
        """Of the target's passes."""
        return self._measure()

    @property
    def measured_cost_curve(self) -> CostCurve | None:
        """The same if a method needed it."""
        curve: CostCurve | None = self.__dict__.get("cost_curve")
        return curve

    @cached_property
    def answers(self) -> tuple[tuple[int, ...], ...]:
        """The store's answers, token by token; MethodError without a datastore, TokenFileError for unusable files."""
        from decoder_client.evaluation.store import read_store_answers

        read = read_store_answers(self._corpus, self.datastore)
        self.notes += read.notes
        return read.answers

    @cached_property
    def suffix_array(self) -> SuffixArray:
        """Of the answers."""
        return SuffixArray(self.answers)

    @cached_property
    def new_suffix_tree(self) -> NewTree:
        """The native extension's class."""
        return load_extension(self._cache)

    @cached_property
    def paper_lookup(self) -> Lookup:
        """Nearest entries of all, whatever their next token."""
        from decoder_client.evaluation.keys import all_keys, exact_search, scann_search

        datastore = self.datastore
        reducer = KeyReducer.from_bytes(datastore.reducer_bytes)
        search = (scann_search if self._ann == "scann" else exact_search)(all_keys(datastore), NEIGHBORS)

        def lookup(state: Tensor) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
            ids = search(reducer.reduce(state[None].float().cpu().numpy())[0])
            entries = datastore.entries(ids[ids >= 0])
            return entries.next_tokens, entries.continuations

        return lookup
