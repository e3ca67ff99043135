"""Refusals: everything that can be known to fail is refused by name before anything is changed.

Each check takes plain data and returns the refusals it found, none when all is well, so that a person sees
all of them at once. ``variables``, ``launch``, ``cluster`` and ``node`` say all that speaks against each; the
filters of ``ingot.filters`` and ``ingot rehearse`` call them.
"""
