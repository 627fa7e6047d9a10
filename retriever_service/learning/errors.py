"""Errors of learning."""

from __future__ import annotations

from retriever_service.datastore import DatastoreError


class LearningError(DatastoreError):
    """Answers cannot be kept, or not be read back."""
