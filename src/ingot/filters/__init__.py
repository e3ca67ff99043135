"""What roles and playbooks call: filters for Jinja. plugins/filter/ingot_filters.py gives them to Ansible."""

from __future__ import annotations

from ingot.filters import (
    containers,
    drivers,
    gate,
    images,
    models,
    nccl,
    neuron,
    preflight,
    programs,
    sizing,
    topology,
    units,
    verify,
)

FILTERS = (
    containers.FILTERS
    | drivers.FILTERS
    | gate.FILTERS
    | images.FILTERS
    | models.FILTERS
    | nccl.FILTERS
    | neuron.FILTERS
    | preflight.FILTERS
    | programs.FILTERS
    | sizing.FILTERS
    | topology.FILTERS
    | units.FILTERS
    | verify.FILTERS
)
