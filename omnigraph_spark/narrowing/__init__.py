"""Queries whose scans read what the query needs: from a frame's plan to an equal, cheaper frame."""
