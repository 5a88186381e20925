"""Search for the settings that make the step shortest, by one of four policies."""
