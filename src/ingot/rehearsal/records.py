"""What is kept of machines over a daemon's life: a directory of each, with its record and its root."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel

from ingot.rehearsal.config import Settings
from ingot.rehearsal.layers import remove_tree, write_atomically
from ingot.rehearsal.model import Machine


class Record(BaseModel):
    """One machine."""

    machine: Machine
    # Below its upper layer now: more than it was launched from once it has been frozen
    layers: tuple[Path, ...]
    should_run: bool = True


class Records:
    """The machines of a region's state."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def directory(self, machine: Machine) -> Path:
        return self._settings.instances / machine.instance_id

    def load(self) -> list[Record]:
        """All of them; what is left of a launch or a terminate that was cut short is removed."""
        paths = sorted(self._settings.instances.glob("*/machine.json"))
        records = [self._mend(Record.model_validate_json(path.read_text())) for path in paths]
        known = {record.machine.instance_id for record in records}
        for unfinished in self._settings.instances.glob("*"):
            if unfinished.name not in known:
                remove_tree(unfinished)
        return records

    def save(self, record: Record) -> None:
        write_atomically(self.directory(record.machine) / "machine.json", record.model_dump_json())

    def rename_upper(self, record: Record) -> None:
        """Make the upper directory the record's first layer, and an empty one in its place."""
        upper = self.directory(record.machine) / "upper"
        upper.rename(record.layers[0])
        upper.mkdir()

    def _mend(self, record: Record) -> Record:
        """Finish a freeze that was cut short between writing the record and renaming the upper directory."""
        if (
            record.layers
            and not record.layers[0].exists()
            and record.layers[0].parent == self._settings.snapshots
        ):
            self.rename_upper(record)
        (self.directory(record.machine) / "upper").mkdir(exist_ok=True)
        return record
