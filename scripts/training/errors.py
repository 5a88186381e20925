"""What a user of the training binary can put right."""


class TrainingError(ValueError):
    """Flags, files or a checkpoint that do not fit together."""
