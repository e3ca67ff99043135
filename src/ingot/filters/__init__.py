"""What roles and playbooks call: filters for Jinja. plugins/filter/ingot_filters.py gives them to Ansible."""

from __future__ import annotations

from ingot.filters import images, models, preflight, sizing, topology, units

FILTERS = (
    images.FILTERS | models.FILTERS | preflight.FILTERS | sizing.FILTERS | topology.FILTERS | units.FILTERS
)
