"""Which settings make the step shortest: what can be set, and four ways to choose."""
