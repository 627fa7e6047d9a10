"""Published drafters that need no training, to compare with: each faithful to its paper, with the paper's settings.

Every module names its source and each point in which it deviates. None is used outside the evaluation.
"""
