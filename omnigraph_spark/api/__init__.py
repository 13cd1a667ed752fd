"""The parts of `OmniGraph`, one per subject: every method is one call below."""
