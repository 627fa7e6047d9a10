"""Answers sent back to a retriever that learns, off the decoder's critical path."""

from decoder_client.learning.config import LearnConfig, learn_config
from decoder_client.learning.learning_drafter import LearningDrafter, listening

__all__ = ["LearnConfig", "LearningDrafter", "learn_config", "listening"]
