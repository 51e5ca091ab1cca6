"""One environment for training, serving and laptops."""
