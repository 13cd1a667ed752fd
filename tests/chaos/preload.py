"""Imported once by the server that chaos processes are forked from; runs nothing."""

import warnings

with warnings.catch_warnings():
    import tests.chaos.jobs  # noqa: F401

# Lance warns of forks, since threads don't survive them. Here none has been started before.
warnings.filterwarnings("ignore", message="lance is not fork-safe")
