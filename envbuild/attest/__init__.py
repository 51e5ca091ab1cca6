"""Statements and signatures beside a pushed image: a bill of materials, provenance, signatures."""
