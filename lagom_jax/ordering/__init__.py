"""In which order: a step's instructions put where collectives cost least."""
