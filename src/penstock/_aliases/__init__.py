"""Modules that stand for others: a folder that `penstock.dropin` puts on the path of the processes that a program starts."""
