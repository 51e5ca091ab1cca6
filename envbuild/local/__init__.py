"""The training environment on this machine: in a container, or as a virtual environment."""
