"""What a training binary is made of, beside the model and the loop."""
