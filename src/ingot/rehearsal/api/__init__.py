"""The EC2 API of the local region: moto, made true through a ``MachineHost``.

moto keeps the books (identifiers, filters, tags, security groups, launch templates); this package replaces
the few classes of moto's EC2 whose answers would otherwise be inventions, and drives the machines.
"""
