"""Recipe -> image, from wheels and a base, without a daemon."""
