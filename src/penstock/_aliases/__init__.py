"""Modules named like other packages; `penstock.dropin` adds this folder to the `PYTHONPATH` of child processes."""
