"""What neuron_node.py consists of, beside ingot.driver: nothing but the standard library."""
