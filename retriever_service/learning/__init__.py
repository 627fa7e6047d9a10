"""Answers that decoders gave, kept so that none is lost, and searched beside a datastore's entries."""

from retriever_service.learning.answers import ID_BYTES, Answer
from retriever_service.learning.errors import LearningError
from retriever_service.learning.store import FullError, LearnedStore, LearningLimits, Recovered

__all__ = ["ID_BYTES", "Answer", "FullError", "LearnedStore", "LearningError", "LearningLimits", "Recovered"]
