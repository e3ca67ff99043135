"""Channels of images: candidate, beta, stable. Each holds a set of images of one commit, proved together."""

from __future__ import annotations

CHANNELS = ("candidate", "beta", "stable")
"""In the order in which a set moves through them."""
