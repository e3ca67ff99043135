"""First causes: why a node does not serve, said on the node in one line.

This package is copied to ``/usr/lib/ingot`` of every image and run by ``/usr/bin/ingot`` with the system's
Python, so it uses nothing but the standard library: it has to work when the serving environment does not.
"""
