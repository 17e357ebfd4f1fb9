"""Numbers to fold into a random key, one per purpose, so that no two uses of a key draw the same numbers.

Counts (environments, iterations, steps, terms) are folded in as 0, 1, 2, ..., and the n-th split of a key is the key
with n folded in. The numbers here are taken from the top of the range, which no count and no split reaches.
"""

_LAST = 2**31 - 1

EVALUATION = _LAST
"""Into the key of a seed, whose splits are for training: the episodes of evaluations."""
VIEWER = _LAST - 1
"""Into the key of a seed: the episodes in the viewer."""

NEXT_STARTS = _LAST
"""Into the key of an env, which makes its first episode: the starts of the following ones, by their numbers from 0."""

RESET = 0
"""Into the key of an episode, whose steps fold in their numbers from 1: its start."""
DRAWN_LEVELS = _LAST - 1
"""Into the key of an episode: the levels of per-env curricula that are drawn."""
MOTION_START = _LAST - 2
"""Into the key of an episode: the clip and the frame of a reference motion where it starts."""
FIRST_CUT = _LAST - 3
"""Into the key of an env's first episode: the steps by which it is shorter."""

OBSERVATION_NOISE = _LAST - 1
"""Into the key of an observation, which the observation may use or split: its noise."""
WRAPPED_OBSERVATION = _LAST - 2
"""Into the key of an observation's wrapper, which the wrapper may use or split: the observation in it."""
NOISE_START = _LAST
"""Into the key of a noise, of which a chain folds in the numbers of its noises: its memory at a reset."""

DISCRIMINATOR = _LAST
"""Into the key of a learner, whose iterations fold in their numbers, and of an update, whose passes fold in theirs."""
