"""Programs of others that read what envbuild writes: `python -m tests.clients` prints what each makes of it."""
