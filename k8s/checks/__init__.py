"""Checks of the manifests that need no cluster; `python -m k8s.checks` runs them all, tests use the parts."""
