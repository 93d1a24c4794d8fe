//! A real Prometheus that watches a gate.
