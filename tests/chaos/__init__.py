"""Writers that die, race and are lied to, as real processes, and an oracle that looks at what is left.

`python -m tests.chaos` runs all of it; `make chaos` does the same in the project's environment.
"""
